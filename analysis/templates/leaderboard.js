// Sorts a table by the column whose heading was pressed: numbers largest first, then smallest first; what was not measured stays last.
for (const table of document.querySelectorAll("table.board")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const isName = head.classList.contains("agent") || column === 0;
      const first = isName ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? (isName ? "descending" : "ascending") : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.v;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const [m, n] = [Number(x), Number(y)];
        return sign * (Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
