"use strict";
(async () => {
  const packed = document.getElementById("charts").textContent.trim();
  const status = document.getElementById("status");
  let figures;
  try {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    figures = JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
  } catch (error) {
    status.textContent = "This browser can't unpack the figures: they are shown as they are, without choices.";
    return;
  }
  const all = [], narrow = innerWidth < 600;
  let busy = false;

  const chosen = (f) => Object.fromEntries(f.filters.map(({ name }) => [name, f.views[0].signal("pick_" + name)]));

  function rowsOf(f) {
    const wanted = Object.entries(chosen(f));
    return f.rows.filter((row) => wanted.every(([name, value]) => row[name] === value));
  }

  /* The table, the words for screen readers and the note of an empty choice follow the selects. */
  function follow(f) {
    const rows = rowsOf(f), said = Object.values(chosen(f)).join(", ");
    const body = f.node.querySelector("tbody");
    body.replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      f.columns.forEach((name, at) => {
        const cell = document.createElement(at ? "td" : "th");
        if (!at) cell.scope = "row";
        const value = row[name];
        cell.textContent = value === null || value === undefined ? "" : typeof value === "number" ? value.toLocaleString("en-US") : value;
        line.append(cell);
      });
      return line;
    }));
    f.node.querySelector(".choice").textContent = said;
    f.node.querySelector(".nothing").hidden = rows.length > 0;
    for (const plot of f.node.querySelectorAll(".plot")) plot.setAttribute("aria-label", `${f.title}. ${said}. ${rows.length} numbers, in the table below.`);
  }

  /* A choice holds for every figure of the page that offers it. */
  async function spread(name, value) {
    if (busy) return;
    busy = true;
    for (const f of all) {
      const filter = f.filters.find((x) => x.name === name);
      if (!filter || !filter.options.includes(value)) continue;
      for (const view of f.views) if (view.signal("pick_" + name) !== value) await view.signal("pick_" + name, value).runAsync();
      follow(f);
    }
    busy = false;
  }

  for (const f of figures) {
    f.node = document.getElementById(f.name);
    f.rows = f.specs.flatMap((spec) => spec.rows);
    f.views = [];
    const plots = [...f.node.querySelectorAll(".plot")];
    try {
      for (const [at, { rows, chart }] of f.specs.entries()) {
        chart.data.find((d) => d.name === "rows").values = rows.map((row) => ({ ...row }));
        plots[at].style.minHeight = plots[at].offsetHeight + "px";
        const still = [...plots[at].childNodes];
        const box = document.createElement("div");
        box.className = "live";
        plots[at].replaceChildren(box);
        if (narrow) chart.config.axis.labelLimit = 130;
        try {
          const { view } = await vegaEmbed(box, chart, { actions: false, renderer: "svg", mode: "vega", logLevel: 1, tooltip: { theme: "report" } });
          f.views.push(view);
        } catch (error) {
          plots[at].replaceChildren(...still);
          throw error;
        }
        plots[at].style.minHeight = "";
      }
    } catch (error) {
      console.error(f.name, error);
      continue;
    }
    all.push(f);
    for (const { name } of f.filters) f.views[0].addSignalListener("pick_" + name, (_, value) => spread(name, value));
    follow(f);
    f.node.dataset.ready = "yes";
  }
  document.documentElement.dataset.figures = `${all.length} of ${figures.length}`;
})();
