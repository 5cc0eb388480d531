"use strict";
(() => {
  // A page that could not be read is asked for again; the visitor may also follow the link.
  const again = document.querySelector("[data-retry]");
  if (again) {
    setTimeout(() => location.reload(), 1000 * Number(again.dataset.retry));
    return;
  }
  // A running night: how far it is, every ten seconds, until it has ended.
  const night = document.querySelector("[data-running]");
  if (night) {
    const said = night.querySelector("[role=status]"), bar = night.querySelector("progress");
    const timer = setInterval(async () => {
      try {
        const answer = await fetch("/api/running", { headers: { Accept: "application/json" } });
        if (!answer.ok) return;
        const now = await answer.json();
        if (now.night !== night.dataset.running) {
          clearInterval(timer);
          said.textContent = "The night has ended. Reload the page for its results.";
          return;
        }
        const words = now.planned ? `${now.done} of ${now.planned} done` : `${now.done} done`;
        if (said.firstChild.textContent !== words) said.firstChild.textContent = words;
        if (bar && now.planned) { bar.max = now.planned; bar.value = now.done; }
        night.querySelector("[data-lasted]").textContent = now.lasted;
      } catch { /* the server is away: what is shown stays */ }
    }, 10000);
  }
})();
