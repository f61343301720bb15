"use strict";
// Sorts the table by the column whose heading is pressed: numbers first, then rows without one.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => {
    heading.querySelector("button")?.addEventListener("click", () => {
      const rising = heading.getAttribute("aria-sort") !== "ascending";
      const key = (row) => {
        const cell = row.cells[column];
        return cell && cell.dataset.order !== undefined ? Number(cell.dataset.order) : column === 0 ? cell.textContent : null;
      };
      const compare = (one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === null || b === null) return (a === null) - (b === null);
        const order = typeof a === "string" ? a.localeCompare(b) : a - b;
        return rising ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    });
  });
}
