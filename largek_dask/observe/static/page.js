"use strict";
// The page: asks for data while it is looked at, and sets every text as text.
(() => {
  const at = document.body.dataset, main = document.getElementById("main");
  const note = document.getElementById("note");
  const query = new URLSearchParams(location.search);
  const ENDED = ["finished", "failed", "cancelled"];
  const SIGNS = {running: "●", queued: "○", waiting: "◔", finished: "✓", failed: "✕",
    cancelled: "■", unreadable: "?"};
  const AXES = {elapsed: "time used", time: "time of day", passes: "passes"};
  const ELSEWHERE = ["alive", "events", "job"];  // the tiles and the two lists at the end say it
  const DASH = "–", FAILURES = 3, SLOW = 10000, SOON = 250;
  const MARKS = 200;
  const EVERY = at.page === "list" ? 2000 : 1000;

  // --- small things ----------------------------------------------------------------------------

  const el = (tag, props = {}, ...inside) => {
    const [name, ...classes] = tag.split("."), made = document.createElement(name);
    if (classes.length) made.className = classes.join(" ");
    for (const [key, value] of Object.entries(props)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const put = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
    return node;
  };
  const isNumber = (value) => typeof value === "number" && isFinite(value);
  const short = (value) => String(Number(value.toPrecision(3)));
  const count = (value) => {
    if (!isNumber(value)) return DASH;
    for (const [size, suffix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (value >= size) return short(value / size) + suffix;
    return short(value);
  };
  const whole = (value) => isNumber(value) ? Math.round(value).toLocaleString("en") : DASH;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const seconds = (s) => {
    if (!isNumber(s)) return DASH;
    if (s < 10) return `${Number(s.toPrecision(2))} s`;
    if (s < 60) return `${Math.round(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
    if (s < 172800) return `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} days`;
  };
  const share = (value) => isNumber(value) ? `${Math.floor(100 * value)} %` : DASH;
  const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
  const link = (id) => `largek?job=${encodeURIComponent(id)}${at.frame ? "&frame=1" : ""}`;
  const badge = (node, state) => {
    put(node, `${SIGNS[state] || ""} ${state}`);
    node.className = `state ${SIGNS[state] ? state : ""}`;
    return node;
  };
  const bar = (value) => {
    const inner = el("i");
    inner.style.width = `${100 * Math.min(1, Math.max(0, value || 0))}%`;
    const found = el("span.bar", {"aria-hidden": "true"}, inner);
    found.hidden = !isNumber(value);
    return found;
  };
  const setBar = (node, value) => {
    node.hidden = !isNumber(value);
    node.firstChild.style.width = `${100 * Math.min(1, Math.max(0, value || 0))}%`;
  };
  // Children of a node by key, in this order; those that stay where they are keep their focus.
  const keyed = (parent, items, keyOf, make, fill) => {
    const known = parent.known || (parent.known = new Map()), kept = new Set();
    items.forEach((item, i) => {
      const key = keyOf(item, i);
      let node = known.get(key);
      if (!node) known.set(key, node = make(item));
      kept.add(key);
      if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] || null);
      fill(node, item);
    });
    for (const [key, node] of known) if (!kept.has(key)) { node.remove(); known.delete(key); }
  };
  const pairs = (node, items) => keyed(node, items, (item, i) => `${item[0]} ${i}`,
    (item) => el("div", {}, el("dt", {}, item[0]), el("dd")),
    (made, item) => put(made.lastChild, item[1]));

  // --- asking ----------------------------------------------------------------------------------

  let failures = 0, lastGood = Date.now(), offset = 0, timer = 0, asking = false, again = false;
  const now = () => Date.now() + offset;
  const age = (time) => Math.max(0, (now() - Date.parse(time)) / 1000);
  const ago = (time) => age(time) < 1.5 ? "just now" : `${seconds(Math.round(age(time)))} ago`;

  const get = async (url) => {
    // The browser sends the tag of what it has, and is sent nothing where that still holds.
    const found = await fetch(url, {cache: "no-cache"});
    const date = Date.parse(found.headers.get("Date"));
    if (date) offset = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
    let data = null;
    try { data = await found.json(); } catch (error) { if (found.ok) throw error; }
    if (!found.ok) throw Object.assign(new Error(data && data.error || `status ${found.status}`),
      {status: found.status});
    return data;
  };
  const say = (text, bad = false) => {
    if (!note.firstChild) note.append(el("div.say", {hidden: ""}));
    const box = note.firstChild;
    box.hidden = !text;
    box.className = bad ? "say bad" : "say";
    put(box, text);
  };
  const ask = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    if (asking) { again = true; return; }
    asking = true;
    let pause = EVERY;
    try {
      const data = await get(address());
      show(data);
      // Of a long job there is more at once.
      if (data.reading) pause = SOON;
      failures = 0;
      lastGood = Date.now();
      say("");
    } catch (error) {
      failures += 1;
      if (error.status === 404) say("This job is no longer there.", true);
      else if (error.status === 400) say(error.message, true);
      else if (failures >= FAILURES) {
        const why = error.status ? error.message : "nobody answers";
        say(`What is shown is old: no news since ${clock(lastGood)} (${why}). ` +
          "Asking again every 10 s.", true);
      }
    }
    asking = false;
    if (failures >= FAILURES) pause = SLOW;
    if (again) pause = 0;
    again = false;
    if (!document.hidden) timer = setTimeout(ask, pause);
  };
  document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : ask());
  setInterval(() => document.hidden || tick(), 1000);

  // --- the list --------------------------------------------------------------------------------

  const COLUMNS = ["State", "Job", "Cost", "Done", "Left", "Rows/s", "Workers", "Last sign"];
  let list = null;

  const listParts = () => {
    const input = el("input", {type: "search", id: "search", maxlength: "200",
      autocomplete: "off", placeholder: "name, id, state, data …"});
    const parts = {
      sum: el("p.quiet"), input, body: el("tbody"), where: el("span.quiet", {role: "status"}),
      before: el("button", {type: "button"}, "Earlier page"),
      after: el("button", {type: "button"}, "Next page"),
      none: el("p", {hidden: ""}), from: Number(query.get("from")) || 0,
    };
    input.value = query.get("search") || "";
    const go = (from) => {
      parts.from = Math.max(0, from);
      const now = new URLSearchParams(at.frame ? {frame: "1"} : {});
      if (input.value) now.set("search", input.value);
      if (parts.from) now.set("from", parts.from);
      history.replaceState(null, "", `largek${now.size ? `?${now}` : ""}`);
      ask();
    };
    let typed = 0;
    input.addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => go(0), 200);
    });
    parts.before.addEventListener("click", () => go(parts.from - 50));
    parts.after.addEventListener("click", () => go(parts.from + 50));
    const head = el("tr", {}, ...COLUMNS.map((name) => el("th", {scope: "col"}, name)));
    parts.table = el("table.jobs", {"aria-label": "Jobs"}, el("thead", {}, head), parts.body);
    main.replaceChildren(el("h1", {}, "Jobs"), parts.sum,
      el("div.find", {}, el("label", {for: "search"}, "Search", input)),
      parts.table, parts.none,
      el("div.find", {}, parts.before, parts.after, parts.where));
    return parts;
  };
  const jobRow = () => {
    const cells = COLUMNS.map((name) => el("td", {"data-name": name}));
    cells[0].append(el("span"));
    cells[1].className = "name words";
    cells[1].append(el("a"), el("small"));
    cells[3].className = "done";
    cells[3].append(bar(null), el("span"));
    return el("tr", {}, ...cells);
  };
  const fillRow = (made, job) => {
    const [state, name, cost, done, left, speed, workers, last] = made.children;
    badge(state.firstChild, job.state);
    const anchor = name.firstChild;
    put(anchor, job.name || job.id);
    if (anchor.getAttribute("href") !== link(job.id)) anchor.href = link(job.id);
    put(name.lastChild, job.name ? job.id : "");
    put(cost, isNumber(job.cost) ? String(Number(job.cost.toPrecision(6))) : DASH);
    setBar(done.firstChild, job.share);
    put(done.lastChild, share(job.share));
    put(left, seconds(job.eta_s));
    put(speed, count(job.rows_per_second));
    put(workers, job.workers ? whole(job.workers) : DASH);
    made.last = job.last_event;
    put(last, job.last_event ? ago(job.last_event) : DASH);
  };
  const showList = (data) => {
    if (!list) list = listParts();
    const states = Object.entries(data.states).map(([name, n]) => `${whole(n)} ${name}`);
    const sum = states.length ? states : ["no jobs yet"];
    if (data.workers) sum.push(`${whole(data.workers)} workers at work`);
    if (data.rows_per_second) sum.push(`${count(data.rows_per_second)} rows/s`);
    put(list.sum, sum.join(" · "));
    list.from = data.from;
    keyed(list.body, data.jobs, (job) => job.id, jobRow, fillRow);
    const last = data.from + data.jobs.length;
    list.table.hidden = !data.jobs.length;
    list.none.hidden = !!data.jobs.length;
    put(list.none, data.of ? "No job is found by that." :
      "Jobs that are submitted appear here by themselves.");
    put(list.where, data.jobs.length ?
      `${whole(data.from + 1)} to ${whole(last)} of ${whole(data.found)}` : "");
    list.before.hidden = list.after.hidden = data.found <= 50 && !data.from;
    list.before.disabled = !data.from;
    list.after.disabled = last >= data.found;
  };

  // --- a job -----------------------------------------------------------------------------------

  let job = null, told = null;

  const tile = (name) => {
    const parts = {text: el("span"), small: el("small"), bar: bar(null)};
    parts.node = el("div", {}, el("dt", {}, name), el("dd", {}, parts.text, parts.bar, parts.small));
    return parts;
  };
  const jobParts = () => {
    const parts = {
      name: el("h1"), state: el("span"), id: el("span.quiet"), error: el("div.say.bad"),
      reading: el("div.say"), waits: el("div"), facts: el("dl.facts"), panels: el("div.panels"),
      marks: el("ol.marks", {tabindex: "0", "aria-label": "What happened"}), act: el("span"),
    };
    parts.tiles = {};
    const tiles = el("dl.tiles");
    for (const [key, name] of [["sign", "Last sign"], ["cost", "Cost"], ["pass", "This pass"],
      ["done", "Done"], ["left", "Left"], ["speed", "Rows/s"], ["workers", "Workers"]]) {
      parts.tiles[key] = tile(name);
      tiles.append(parts.tiles[key].node);
    }
    parts.happened = el("section.panel", {}, el("h2", {}, "What happened"), parts.marks);
    parts.about = el("section.panel", {}, el("h2", {}, "This job"), parts.facts);
    parts.end = el("div.panels", {}, parts.happened, parts.about);
    if (at.token) parts.act.append(cancelButton());
    main.replaceChildren(el("div.head", {}, parts.name, parts.state, parts.id, parts.act),
      parts.error, parts.waits, parts.reading, tiles, parts.panels, parts.end);
    return parts;
  };
  const cancelButton = () => {
    const button = el("button.danger", {type: "button"}, "Cancel …");
    const yes = el("button.danger", {type: "button"}, "Cancel the job");
    const no = el("button", {type: "button"}, "Let it run");
    const text = el("p", {id: "asked"}, "Cancel this job? Its best model so far is kept, and it " +
      "can be gone on with later.");
    const dialog = el("dialog", {"aria-labelledby": "asked"}, text, yes, no);
    document.body.append(dialog);
    button.addEventListener("click", () => dialog.showModal());
    no.addEventListener("click", () => dialog.close());
    yes.addEventListener("click", async () => {
      dialog.close();
      button.disabled = true;
      try {
        const found = await fetch("largek/cancel", {method: "POST",
          headers: {"Content-Type": "application/json"},
          body: JSON.stringify({job: at.job, token: at.token})});
        if (!found.ok) throw new Error(found.status === 403 ?
          "it is not allowed, or the scheduler was started anew: load the page again" :
          `status ${found.status}`);
        ask();
      } catch (error) {
        button.disabled = false;
        say(`The job was not cancelled: ${error.message}.`, true);
      }
    });
    return button;
  };
  const setTile = (key, text, small = "", value = null) => {
    const parts = job.tiles[key];
    put(parts.text, text);
    put(parts.small, small);
    setBar(parts.bar, value);
    parts.node.hidden = text === "";
  };
  const showNow = () => {
    const n = told.now || {}, live = told.state === "running";
    const usual = n.step_seconds, old = n.last_event ? age(n.last_event) : null;
    const late = live && old !== null && old > Math.max(15, 4 * (usual || 0));
    setTile("sign", old === null ? "" : live ? ago(n.last_event) : clock(n.last_event),
      !live ? old === null ? "" : new Date(n.last_event).toLocaleDateString("en-GB") :
        usual ? `${late ? "overdue: " : ""}usually every ${seconds(usual)}` : "");
    job.tiles.sign.node.className = late ? "late" : "";
    const cost = (told.panels || []).find((panel) => panel.kind === "cost");
    const [last, best] = cost ? cost.figures : [];
    setTile("cost", last ? last[1] : "", best ? `${best[0]} ${best[1]}` : "");
    if (cost) put(job.tiles.cost.node.firstChild, cost.title);
    const pass = live && n.progress && n.progress.n_chunks ? n.progress : null;
    setTile("pass", pass ? share(pass.done / pass.n_chunks) : "",
      pass ? `${whole(pass.done)} of ${whole(pass.n_chunks)} chunks` : "",
      pass ? pass.done / pass.n_chunks : null);
    const labels = isNumber(n.labelled) && told.state !== "finished";
    setTile("done", isNumber(n.share) ? share(n.share) : "",
      labels ? `${share(n.labelled)} of the labels written` : "", n.share);
    setTile("left", live && isNumber(n.eta_s) ? seconds(n.eta_s) : "",
      !live || !n.limited_by ? "" : isNumber(n.eta_s) ? `at most, by ${n.limited_by}` : "converging");
    setTile("speed", live && isNumber(n.rows_per_second) ? count(n.rows_per_second) : "");
    setTile("workers", live && n.workers ? whole(n.workers) : "");
  };
  const showJob = (data) => {
    told = data;
    if (!job) job = jobParts();
    const name = data.name || data.title || data.id;
    put(job.name, name);
    badge(job.state, data.state);
    put(job.id, data.name ? data.id : "");
    const done = data.now && isNumber(data.now.share) && data.state === "running" ?
      ` ${share(data.now.share)}` : "";
    document.title = `${data.state}${done} · ${name}`;
    job.error.hidden = !data.error;
    put(job.error, data.error || "");
    job.reading.hidden = !data.reading;
    put(job.reading, data.reading ? "Still reading what it told earlier: charts fill up." : "");
    const alive = (data.panels || []).find((panel) => panel.kind === "alive");
    const waits = [...(data.facts || []), ...(alive ? alive.figures : [])]
      .filter((fact) => fact[0] === "waits").map((fact) => fact[1]);
    keyed(job.waits, [...new Set(waits)], (text) => text, () => el("div.say"), put);
    job.act.hidden = ENDED.includes(data.state);
    showNow();
    const panels = data.panels || [], about = panels.find((panel) => panel.kind === "job");
    const known = new Set((data.facts || []).map((fact) => fact[0]));
    const more = about ? [...about.table.rows, ...about.figures] : [];
    pairs(job.facts, [...(data.facts || []), ...more.filter((fact) => !known.has(fact[0]))]);
    // Of checkpoints the last one matters; charts have them all.
    const all = (data.marks || []).slice().reverse();
    const saved = all.find((mark) => mark.kind === "checkpoint");
    const marks = all.filter((mark) => mark.kind !== "checkpoint" || mark === saved).slice(0, MARKS);
    job.happened.hidden = !marks.length;
    keyed(job.marks, marks, (mark, i) => `${marks.length - i} ${mark.time}`,
      () => el("li", {}, el("time"), el("span")), (made, mark) => {
        put(made.firstChild, clock(mark.time));
        made.firstChild.title = new Date(mark.time).toLocaleString("en-GB");
        put(made.lastChild, mark.text);
      });
    keyed(job.panels, panels.filter((panel) => !ELSEWHERE.includes(panel.kind)),
      (panel) => panel.kind, makePanel, fillPanel);
  };

  // --- panels ----------------------------------------------------------------------------------

  const inSight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.isSeen = entry.isIntersecting;
      if (entry.isIntersecting) draw(entry.target.parts);
    }
  }, {rootMargin: "300px"});

  const makePanel = (panel) => {
    const parts = {title: el("h2"), words: el("p"), figures: el("dl.figures"), kind: panel.kind,
      controls: el("div.controls"), chart: el("div.chart", {id: `chart-${panel.kind}`}),
      table: el("table"), more: el("summary")};
    parts.head = el("thead");
    parts.rows = el("tbody");
    parts.table.append(parts.head, parts.rows);
    parts.scroll = el("div.scroll", {tabindex: "0", role: "region"}, parts.table);
    parts.details = el("details", {}, parts.more, parts.scroll);
    parts.details.addEventListener("toggle", () => fillTable(parts));
    addControls(parts, panel);
    parts.framed = el("div", {role: "group"}, parts.chart);
    const node = el("section.panel", {}, el("div.title", {}, parts.title, parts.controls),
      parts.words, parts.figures, parts.framed, parts.details);
    node.parts = parts;
    parts.chart.parts = parts;
    inSight.observe(parts.chart);
    return node;
  };
  // What a chart is drawn against, and how: only where there is a choice.
  const addControls = (parts, panel) => {
    const check = (text) => {
      const box = el("input", {type: "checkbox"});
      parts.controls.append(el("label", {}, box, text));
      box.addEventListener("change", () => draw(parts, true));
      return box;
    };
    if (panel.axes.length > 1) {
      const options = panel.axes.map((axis) => el("option", {value: axis}, AXES[axis] || axis));
      parts.axis = el("select", {"aria-label": `${panel.title}: against`}, ...options);
      parts.axis.addEventListener("change", () => draw(parts, true));
      parts.controls.append(parts.axis);
    }
    if (panel.series.some((series) => series.above)) parts.log = check("above the best, log");
    if (panel.kind === "cost") parts.skip = check("without the first steps");
    const save = el("button", {type: "button", "aria-label": `${panel.title}: save as SVG`}, "SVG");
    save.addEventListener("click", () => saveSvg(parts));
    parts.controls.append(save);
  };
  const fillPanel = (node, panel) => {
    const parts = node.parts;
    parts.panel = panel;
    put(parts.title, panel.title);
    // Figures say the same at a glance; the sentence is what a chart is called for who hears it.
    put(parts.words, panel.words || "");
    pairs(parts.figures, panel.figures || []);
    parts.figures.hidden = !(panel.figures || []).length;
    parts.words.hidden = !parts.figures.hidden;
    parts.framed.hidden = parts.controls.hidden = !panel.figure || !at.bokeh || bokehFailed;
    parts.framed.setAttribute("aria-label", `Chart of ${panel.title}: ${panel.words || ""}`);
    if (parts.skip) parts.skip.parentNode.hidden = panel.skip === null;
    const table = panel.table;
    parts.details.hidden = !table || !table.rows.length;
    if (table) put(parts.more, `Table of ${panel.title.toLowerCase()}`);
    fillTable(parts);
    draw(parts);
  };
  const fillTable = (parts) => {
    const table = parts.panel.table;
    if (!table || !parts.details.open) return;
    parts.scroll.setAttribute("aria-label", `Table of ${parts.panel.title.toLowerCase()}`);
    keyed(parts.head, [table.columns], () => 0, () => el("tr"), (tr, names) =>
      keyed(tr, names, (_, i) => i, () => el("th", {scope: "col"}), put));
    keyed(parts.rows, table.rows, (_, i) => i, () => el("tr"), (tr, texts) =>
      keyed(tr, texts, (_, i) => i, () => el("td"), put));
  };

  // --- charts ----------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  let bokehFailed = false, loading = null;
  dark.addEventListener("change", () => told && showJob(told));

  const loadBokeh = () => loading || (loading = new Promise((done, fail) => {
    const script = el("script", {src: at.bokeh});
    script.addEventListener("load", done);
    script.addEventListener("error", fail);
    document.head.append(script);
  }).then(() => { Bokeh.logger.set_level("error"); }));

  const numbers = (values) => values.map((value) => value === null ? NaN : value);
  const axisOf = (parts) => parts.axis ? parts.axis.value : parts.panel.x;
  const feed = (parts) => {
    const {kind, series, skip} = parts.panel;
    const from = parts.skip && parts.skip.checked && skip !== null ? skip : -Infinity;
    for (const line of series) {
      const {name, ...columns} = line, source = parts.sources.get(`${kind}/${name}`);
      const kept = (_, i) => !(columns.x[i] <= from);
      if (source) source.data = Object.fromEntries(Object.entries(columns).map(
        ([column, values]) => [column, numbers(values.filter(kept))]));
    }
    const marks = parts.sources.get(`${kind}/marks`);
    if (!marks) return;
    const axis = axisOf(parts);
    const shown = (told.marks || []).filter((mark) => !(mark.elapsed <= from));
    const x = numbers(shown.map((mark) => mark[axis]));
    marks.data = {x, span: x.map((at, i) => shown[i].kind === "checkpoint" ? NaN : at),
      kind: shown.map((mark) => mark.kind), text: shown.map((mark) => mark.text)};
  };
  const draw = (parts, anew = false) => {
    const panel = parts.panel, theme = dark.matches ? "dark" : "light";
    if (!panel || !panel.figure || !at.bokeh || bokehFailed || !parts.chart.isSeen) return;
    const how = new URLSearchParams({job: at.job, panel: panel.kind, theme});
    if (parts.axis) how.set("x", parts.axis.value);
    if (parts.log && parts.log.checked) how.set("log", "1");
    const wanted = `${panel.figure} ${how}`;
    if (parts.drawn === wanted) {
      if (parts.sources && (anew || parts.fed !== panel)) {
        parts.fed = panel;
        feed(parts);
        }
      return;
    }
    parts.drawn = wanted;
    parts.sources = null;
    const asked = get(`largek/figure?${how}`);
    asked.catch(() => 0);
    line = line.then(() => make(parts, wanted, asked));
  };
  // One after the other, and each is seen before the next is made.
  let line = Promise.resolve();
  const make = async (parts, wanted, asked) => {
    try {
      const [item] = await Promise.all([asked, loadBokeh()]);
      if (parts.drawn !== wanted) return;
      const before = parts.views;
      parts.chart.replaceChildren();
      parts.views = await Bokeh.embed.embed_item(item, parts.chart.id);
      if (before) forget(before);
      parts.sources = sourcesOf(parts.views);
      parts.fed = parts.panel;
      feed(parts);
      await new Promise((done) => setTimeout(done));
    } catch (error) {
      parts.drawn = "";
      if (!window.Bokeh) {
        bokehFailed = true;
        say("Charts cannot be loaded; all numbers are in the tables.");
        if (told) showJob(told);
      }
    }
  };
  // BokehJS keeps the documents of figures that are no longer shown.
  const forget = (views) => {
    const kept = new Set([...views].map((view) => view.model.document));
    views.clear();
    Bokeh.documents.splice(0, Infinity, ...Bokeh.documents.filter((doc) => !kept.has(doc)));
  };
  const saveSvg = async (parts) => {
    if (!parts.sources) return;
    const blob = await [...parts.views][0].export("svg").to_blob();
    const address = URL.createObjectURL(blob);
    el("a", {href: address, download: `largek-${at.job}-${parts.kind}.svg`}).click();
    setTimeout(() => URL.revokeObjectURL(address), SLOW);
  };
  const sourcesOf = (views) => {
    const found = new Map();
    for (const view of views)
      for (const model of view.model.document._all_models.values())
        if (model.name) found.set(model.name, model);
    return found;
  };

  // --- going -----------------------------------------------------------------------------------

  const address = () => at.page === "list" ?
    `largek/data/jobs.json?${new URLSearchParams({from: list ? list.from :
      Number(query.get("from")) || 0, search: list ? list.input.value :
      query.get("search") || ""})}` :
    `largek/data/job.json?job=${encodeURIComponent(at.job)}`;
  const show = at.page === "list" ? showList : showJob;
  const tick = () => {
    if (job) showNow();
    if (list) for (const made of list.body.children)
      if (made.last) put(made.lastChild, ago(made.last));
  };
  ask();
  if (at.page === "job" && at.bokeh) loadBokeh().catch(() => 0);
})();
