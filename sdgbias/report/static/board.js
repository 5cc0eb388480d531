"use strict";
/* The leaderboard: its columns sort. */
(() => {
  const board = document.getElementById("board");
  if (!board) return;
  const body = board.tBodies[0], first = [...body.rows];
  for (const node of document.querySelectorAll("[data-scripted]")) node.hidden = false;

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
})();
