"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // light or dark: the reader's system decides until the button is pressed
  const root = document.documentElement;
  const remember = (value) => { try { localStorage.setItem("fedssa-theme", value); } catch { /* not for files */ } };
  try {
    const kept = localStorage.getItem("fedssa-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* not for files */ }
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remember(root.dataset.theme);
  });

  // a method is shown or hidden in every figure, and greyed in every table
  const off = new Set();
  const show = () => {
    for (const part of all("svg [data-series]")) part.style.display = off.has(part.dataset.series) ? "none" : "";
    for (const row of all("tr[data-series]")) row.classList.toggle("off", off.has(row.dataset.series));
    for (const chip of all("[data-toggle]")) {
      if (chip.dataset.toggle === "all") chip.hidden = off.size === 0;
      else chip.setAttribute("aria-pressed", String(!off.has(chip.dataset.toggle)));
    }
  };
  for (const chip of all("[data-toggle]")) {
    chip.addEventListener("click", () => {
      const series = chip.dataset.toggle;
      if (series === "all") off.clear();
      else if (!off.delete(series)) off.add(series);
      show();
    });
  }
  show();

  // sorting: first the larger numbers, or the earlier words; what has no value stays last
  const value = (row, column) => {
    const text = row.cells[column].dataset.sort;
    if (text === undefined) return null;
    const number = Number(text);
    return text === "" || Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => head.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort")
        ? head.getAttribute("aria-sort") === "ascending" : head.classList.contains("n");
      for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : (falling ? -1 : 1) * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    }));
  }

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch { button.textContent = "selected"; }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
})();
