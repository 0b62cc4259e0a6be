const dark = matchMedia("(prefers-color-scheme: dark)");
const items = JSON.parse(document.getElementById("items").textContent);
let shown = [];
const draw = async () => {
  shown.forEach((views) => views.clear());
  shown = [];
  for (const [node, light, night] of items) {
    document.getElementById(node).replaceChildren();
    shown.push(await Bokeh.embed.embed_item(dark.matches ? night : light, node));
  }
};
Bokeh.logger.set_level("error");
dark.addEventListener("change", draw);
draw();
