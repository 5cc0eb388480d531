"use strict";
/* The leaderboard: its columns sort, and two ticked models are shown beside each other. */
(() => {
  const board = document.getElementById("board");
  if (!board) return;
  const body = board.tBodies[0], first = [...body.rows];
  for (const node of document.querySelectorAll("[data-scripted], #board .pick")) node.hidden = false;

  const heads = [...board.tHead.rows[1].cells];
  const key = (row, at) => row.cells[at].dataset.sort;
  heads.forEach((head, at) => {
    const label = head.querySelector(".sortable") || head;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sorts";
    button.textContent = label.textContent;
    if (label === head) head.replaceChildren(button);
    else label.replaceWith(button);
    button.addEventListener("click", () => {
      const start = at ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort") !== start ? start : at ? "ascending" : "descending";
      const way = now === "descending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", now);
      const order = [...first].sort((a, b) => {
        const x = key(a, at), y = key(b, at), apart = a.classList.contains("planted") - b.classList.contains("planted");
        if (apart) return apart; /* planted models stay last */
        if (!x || !y) return !x - !y; /* rows without a number stay last */
        return way * (at ? Number(x) - Number(y) : x.localeCompare(y));
      });
      body.append(...order);
    });
  });

  const box = document.getElementById("picked");
  if (!box) return;
  const told = JSON.parse(document.getElementById("pairs").textContent || "{}");
  const add = (parent, tag, text) => {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    parent.append(node);
    return node;
  };
  function show() {
    const rows = [...body.rows].filter((row) => row.querySelector(".pick").checked);
    for (const pick of body.querySelectorAll(".pick")) pick.disabled = rows.length === 2 && !pick.checked;
    box.hidden = rows.length === 0;
    box.replaceChildren();
    if (rows.length === 1) add(box, "p", `${rows[0].dataset.model}: tick a second model to compare it with.`);
    if (rows.length !== 2) return;
    const [a, b] = rows.map((row) => row.dataset.model);
    const said = told[`${a}|${b}`] || told[`${b}|${a}`];
    if (said) add(box, "p", said);
    for (const suite of ["sdg", "people"]) {
      if (!board.dataset.compare || !rows.every((row) => row.dataset[suite])) continue;
      const link = add(add(box, "p"), "a", `${a} and ${b}, question by question (${suite})`);
      link.href = `${board.dataset.compare}?${new URLSearchParams({ a: rows[0].dataset[suite], b: rows[1].dataset[suite] })}`;
    }
    const table = add(add(box, "div"), "table");
    table.parentNode.className = "scroll";
    const top = add(add(table, "thead"), "tr");
    for (const text of ["Number", a, b]) add(top, "th", text).scope = "col";
    const cells = add(table, "tbody");
    heads.slice(1).forEach((head, at) => {
      const line = add(cells, "tr"), name = head.querySelector(".sorts").textContent;
      add(line, "th", name).scope = "row";
      for (const row of rows) add(line, "td", row.cells[at + 1].dataset.said.replace(name, "").replace(/^:?\s+/, ""));
    });
  }
  body.addEventListener("change", show);
})();
