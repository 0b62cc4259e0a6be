"use strict";
// Fetch the content every two seconds, show it, and let BokehJS draw the charts that are in sight.
(() => {
  const at = document.body.dataset, main = document.getElementById("main");
  const note = document.getElementById("note");
  const EVERY = 2000, SLOW = 10000, FAILURES = 3;
  let told = null, tag = "", failures = 0, lastGood = Date.now(), offset = 0, timer = 0;

  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const say = (text) => { note.className = text ? "say bad" : ""; put(note, text); };
  const get = async (url) => {
    // The browser sends the tag of its cached content; the server sends no body if it is current.
    const found = await fetch(url, {cache: "no-cache"});
    const date = Date.parse(found.headers.get("Date"));
    if (date) offset = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
    const data = await found.json().catch((error) => { if (found.ok) throw error; });
    if (found.ok) return [data, found.headers.get("Etag")];
    throw Object.assign(new Error(data?.error ?? `status ${found.status}`), {status: found.status});
  };
  const ask = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const [data, etag] = await get(at.data);
      if (etag !== tag) show(data);
      [tag, failures, lastGood] = [etag, 0, Date.now()];
      say(isBroken ? "Charts cannot be loaded; all numbers are in the tables." : "");
    } catch (error) {
      failures += 1;
      const since = new Date(lastGood).toLocaleTimeString("en-GB");
      if (error.status === 404) say("This job no longer exists.");
      else if (failures >= FAILURES) say(`This page is out of date: no data since ${since} (` +
        `${error.status ? error.message : "no answer"}). Retrying every 10 s.`);
    }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(ask, failures >= FAILURES ? SLOW : EVERY);
  };
  const show = (data) => {
    told = data;
    const next = document.createElement("main");
    next.innerHTML = data.html;  // the server escapes every value, and no inline script runs here
    fill(main, next);
    document.title = `${data.title} · largek`;
    writeTimes();
    for (const [chart, about] of charts) if (!chart.isConnected) {
      forget(about);
      charts.delete(chart);
    }
    drawAll();
  };
  // Replace the children of a node; children that stay keep focus, scroll position and charts.
  const fill = (node, next) => {
    const named = new Map([...node.children].filter((child) => child.id).map((c) => [c.id, c]));
    let here = node.firstChild;
    for (const child of [...next.childNodes]) {
      const mine = child.id ? named.get(child.id) : here;
      if (!mine || mine.nodeName !== child.nodeName || (mine.id ?? "") !== (child.id ?? "")) {
        node.insertBefore(child, here);
        continue;
      }
      if (mine === here) here = here.nextSibling;
      else node.insertBefore(mine, here);
      if (!mine.attributes) put(mine, child.data);
      else {
        for (const {name} of [...mine.attributes])
          if (!child.hasAttribute(name) && name !== "open") mine.removeAttribute(name);
        for (const {name, value} of child.attributes)
          if (mine.getAttribute(name) !== value) mine.setAttribute(name, value);
        if (!mine.classList.contains("chart")) fill(mine, child);
      }
    }
    for (let gone = here; gone; gone = here) {
      here = gone.nextSibling;
      gone.remove();
    }
  };
  const forms = {
    ago: (s) => s < 1.5 ? "just now" : s < 60 ? `${Math.round(s)} s ago` :
      s < 3600 ? `${Math.floor(s / 60)} min ago` : `${Math.floor(s / 3600)} h ago`,
    clock: (s, time) => time.toLocaleTimeString("en-GB"),
    day: (s, time) => time.toLocaleDateString("en-GB"),
  };
  const writeTimes = () => {
    for (const node of main.querySelectorAll("time[datetime]")) {
      const time = new Date(node.dateTime), age = (Date.now() + offset - time) / 1000;
      put(node, forms[node.dataset.form](age, time));
      const tile = node.closest("[data-late]");
      tile?.classList.toggle("late", age > tile.dataset.late);
    }
  };

  // --- charts ----------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = new Map();  // for each chart: the URL of its figure, its views and its data
  let loading = null, isBroken = false, line = Promise.resolve();

  const inSight = new IntersectionObserver((entries) => {
    for (const {target, isIntersecting} of entries) {
      target.isSeen = isIntersecting;
      draw(target);
    }
  }, {rootMargin: "300px"});
  const loadBokeh = () => loading ??= new Promise((done, fail) => {
    const script = Object.assign(document.createElement("script"), {src: at.bokeh});
    script.addEventListener("load", done);
    script.addEventListener("error", fail);
    document.head.append(script);
  }).then(() => Bokeh.logger.set_level("error"));
  const drawAll = () => main.querySelectorAll(".chart").forEach((chart) => {
    chart.parentNode.hidden = isBroken;
    inSight.observe(chart);
    draw(chart);
  });
  const draw = (chart) => {
    if (isBroken || !chart.isSeen) return;
    const url = chart.dataset.figure + `&theme=${dark.matches ? "dark" : "light"}`;
    const known = charts.get(chart);
    if (known?.url === url) return feed(chart, known);
    const about = {url, views: known?.views, isOld: true};
    charts.set(chart, about);
    // Make charts one after the other, so that each is shown before the next is made.
    line = line.then(() => make(chart, about)).then(() => new Promise((done) => setTimeout(done)));
  };
  const make = async (chart, about) => {
    if (charts.get(chart) !== about) return;
    try {
      const [[item]] = await Promise.all([get(about.url), loadBokeh()]);
      if (charts.get(chart) !== about) return;
      forget(about);
      chart.replaceChildren();
      about.views = await Bokeh.embed.embed_item(item, chart.id);
      about.isOld = false;
      feed(chart, about);
    } catch (error) {
      charts.delete(chart);
      isBroken = !window.Bokeh;
      if (isBroken) [tag, timer] = ["", setTimeout(ask)];
    }
  };
  // BokehJS keeps the documents of figures that are no longer shown.
  const forget = ({views}) => {
    const gone = new Set([...views ?? []].map((view) => view.model.document));
    views?.clear();
    if (views) Bokeh.documents.splice(0, Infinity, ...Bokeh.documents.filter((d) => !gone.has(d)));
  };
  const numbers = (values) => values.map((value) => value === null ? NaN : value);
  const feed = (chart, about) => {
    const kind = chart.dataset.panel, {marks, series} = told;
    if (about.isOld || about.fed === told || !series[kind]) return;
    about.fed = told;
    const sources = new Map([...about.views].flatMap((view) =>
      [...view.model.document._all_models.values()].map((model) => [model.name, model])));
    const give = (name, data) => { if (sources.has(name)) sources.get(name).data = data; };
    for (const {name, ...columns} of series[kind]) give(`${kind}/${name}`, Object.fromEntries(
      Object.entries(columns).map(([column, values]) => [column, numbers(values)])));
    const x = numbers(marks.map((mark) => mark.elapsed));
    const span = x.map((place, i) => marks[i].kind === "checkpoint" ? NaN : place);
    give(`${kind}/marks`, {x, span, kind: marks.map((mark) => mark.kind),
      text: marks.map((mark) => mark.text)});
  };

  // --- events ----------------------------------------------------------------------------------

  const dialog = document.querySelector("dialog");
  const cancel = async () => {
    const found = await fetch("largek/cancel", {method: "POST",
      headers: {"Content-Type": "application/json"},
      body: JSON.stringify({job: at.job, token: at.token})}).catch(() => null);
    if (found?.ok) return ask();
    say("The job was not cancelled: " + (found?.status === 403 ?
      "cancelling is not allowed, or the scheduler was restarted; reload the page." : "try again."));
  };
  main.addEventListener("click", ({target}) => target.id === "cancel" && dialog.showModal());
  dialog?.addEventListener("click", ({target}) => {
    if (target.value) dialog.close();
    if (target.value === "cancel") cancel();
  });
  dark.addEventListener("change", drawAll);
  document.addEventListener("visibilitychange", ask);
  setInterval(() => document.hidden || writeTimes(), 1000);
  if (at.job && at.bokeh) loadBokeh().catch(() => 0);
  writeTimes();
  ask();
})();
