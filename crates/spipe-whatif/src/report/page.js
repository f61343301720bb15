"use strict";
(() => {
  const table = document.getElementById("machines");
  const body = table.tBodies[0];
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = parseFloat(cell.dataset.value ?? cell.textContent);
    return Number.isNaN(number) ? cell.textContent.trim() : number;
  };
  let last = 0, descending = false;
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      descending = column === last && !descending;
      last = column;
      const rows = [...body.rows];
      rows.sort((one, other) => {
        const [left, right] = [value(one, column), value(other, column)];
        const order = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right));
        return descending ? -order : order;
      });
      body.append(...rows);
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    });
  });
})();
