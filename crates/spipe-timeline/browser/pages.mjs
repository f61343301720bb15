// Opens the pages that spipe writes in headless Chromium: node pages.mjs SPIPE FOLDER
// SPIPE is the command, FOLDER holds the pages, which are made anew. CHROMIUM names the browser.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { chromium } from "playwright-core";

const [spipe, folder] = process.argv.slice(2).map((path) => resolve(path));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const faults = [];
const check = (holds, what) => {
  if (!holds) faults.push(what);
  console.log(`${holds ? "ok  " : "FAIL"} ${what}`);
};

function run(...args) {
  return execFileSync(spipe, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 28 });
}

const JOB = `format-version = 1
name = "which-card"
[[train]]
model = "gpt2"
tokens = "200 M"
seq-len = 1024
global-batch = 8
[vary]
gpu = ["rtx3090", "rtx4090"]
gpus = [1, 2]
platform = ["epyc-7713p"]
dram = ["128 GiB"]
condition = ["used", "new"]
`;

// The pages: one trace, two traces, many spans, names with markup, systems and machines side by side.
function make() {
  mkdirSync(folder, { recursive: true });
  const workload = ["--model", "gpt2", "--hardware", "rtx3090-x4-two-sockets", "--global-batch", "8", "--time-limit", "2s"];
  for (const system of ["1f1b", "zb-h1"]) {
    run("plan", ...workload, "--system", system, "-o", `${system}.json`);
    run("simulate", `${system}.json`, "-o", `${system}-trace.json`);
  }
  run("timeline", "1f1b-trace.json", "-o", "one.html");
  run("timeline", "1f1b-trace.json", "zb-h1-trace.json", "-o", "two.html");
  run("schedule", "1f1b", "--devices", "16", "--microbatches", "3200", "-o", "many.html");
  run("schedule", "gis", "--devices", "32", "--chunks", "4", "--microbatches", "2048", "-o", "most.html");
  const trace = JSON.parse(readFileSync(`${folder}/1f1b-trace.json`));
  const evil = '</script><img src=x onerror="window.hacked=1">';
  trace.name = evil;
  trace.lanes.forEach((lane) => { lane.name += evil; });
  writeFileSync(`${folder}/evil-trace.json`, JSON.stringify(trace));
  run("timeline", "evil-trace.json", "-o", "evil.html");
  run("compare-systems", ...workload, "--system", "1f1b,zb-h1,gpu-only,fsdp,data-parallel", "-o", "systems.html");
  writeFileSync(`${folder}/job.toml`, JOB);
  run("whatif", "job.toml", "--as-of", "2026-11-28", "-o", "whatif.html");
}

const browser = await (async () => {
  make();
  return chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
})();

async function open(name, { width = 1280, height = 900, scheme = "light" } = {}) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme });
  page.said = [];
  page.on("console", (message) => page.said.push(message.text()));
  page.on("pageerror", (error) => page.said.push(error.message));
  await page.goto(`file://${folder}/${name}.html`);
  await page.waitForTimeout(200);
  return page;
}

// On two cores without other work 100,000 spans are drawn in 2 s, and steps of panning take 33 ms in the
// median and 66 ms at the 95th percentile. Times above this multiple mean a fault, not a busy machine.
const BUSY = 8;
// The width of A4 less margins of 1 cm at 96 pixels per inch.
const PAPER = 718;
const NAMES = ["one", "two", "systems", "evil", "whatif"];

for (const name of NAMES) {
  for (const scheme of ["light", "dark"]) {
    const page = await open(name, { scheme });
    // The page forbids scripts that it does not bring, so the checker comes through the debugger.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    const words = serious.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 120)}`).join("; ");
    check(serious.length === 0, `${name}, ${scheme}: axe finds nothing serious ${words}`);
    check(page.said.length === 0, `${name}, ${scheme}: nothing on the console ${page.said.join("; ")}`);
    await page.screenshot({ path: `${folder}/${name}-${scheme}.png` });
    await page.close();
  }
  const page = await open(name, { width: 360, height: 800 });
  const [wide, small] = await page.evaluate(() => {
    const texts = [...document.querySelectorAll("body *")].filter((element) =>
      [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && element.getClientRects().length);
    return [document.documentElement.scrollWidth, Math.min(...texts.map((element) => parseFloat(getComputedStyle(element).fontSize)))];
  });
  check(wide <= 360, `${name}: no sideways scrolling at 360 pixels (${wide})`);
  check(small >= 12, `${name}: text of at least 12 px (${small})`);
  await page.screenshot({ path: `${folder}/${name}-small.png` });
  await page.close();
  const paper = await open(name, { width: PAPER, height: 1000, scheme: "dark" });
  await paper.emulateMedia({ media: "print" });
  await paper.waitForTimeout(100);
  const [printed, ground] = await paper.evaluate(() => [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]);
  check(printed <= PAPER, `${name}: fits on paper (${printed} of ${PAPER} pixels)`);
  check(ground === "rgb(255, 255, 255)", `${name}: is printed on white, also from a dark screen`);
  await paper.screenshot({ path: `${folder}/${name}-print.png` });
  await paper.close();
}

{
  const page = await open("one");
  const span = () => page.evaluate(() => [state.from, state.to]);
  const whole = await span();
  await page.keyboard.press("w");
  const zoomed = await span();
  check(zoomed[1] - zoomed[0] < whole[1] - whole[0], "W zooms in without a click");
  await page.keyboard.press("d");
  check((await span())[0] > zoomed[0], "D pans without a click");
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("s");
  check(JSON.stringify(await span()) === JSON.stringify(whole), "the left arrow and S go back");
  await page.keyboard.press("?");
  check(await page.evaluate(() => byId("help").open), "? opens the help");
  await page.keyboard.press("?");
  await page.keyboard.press("/");
  await page.keyboard.type("optimizer");
  check(/^1 of \d+$/.test(await page.textContent("#found")), "/ searches");
  check((await page.textContent("#details")).includes("optimizer-step"), "the search selects what it finds");
  await page.keyboard.press("Escape");
  const box = await page.locator("#lanes canvas").boundingBox();
  for (let x = 200; x < 900 && await page.locator("#tip").isHidden(); x += 10) await page.mouse.move(box.x + x, box.y + 18);
  check(await page.locator("#tip").isVisible(), "hovering shows a bar's details");
  await page.mouse.wheel(0, -300);
  check((await span())[1] - (await span())[0] < whole[1] - whole[0], "the wheel zooms");
  check((await page.textContent("main + section")).includes("Where the time goes"), "there is a panel of waits and critical path");
  await page.close();
}

for (const [name, column] of [["two", 4], ["systems", 2], ["whatif", 3]]) {
  const page = await open(name);
  const table = page.locator("table").first(), heading = table.locator("thead th").nth(column).locator("button");
  const orders = async () => (await table.locator(`tbody tr > :nth-child(${column + 1})`).evaluateAll((cells) => cells.map((cell) => cell.dataset.order ?? cell.dataset.value)))
    .filter((order) => order !== undefined).map(Number);
  await heading.click();
  const rising = await orders();
  await heading.click();
  const falling = await orders();
  check(rising.every((order, at) => at === 0 || rising[at - 1] <= order), `${name}: a heading sorts`);
  check(falling.every((order, at) => at === 0 || falling[at - 1] >= order) && falling.length > 1, `${name}: a second click turns it round`);
  await page.close();
}

{
  const page = await open("evil");
  check(await page.evaluate(() => window.hacked === undefined && !document.querySelector("img")), "markup in names is text");
  await page.close();
}

for (const name of ["many", "most"]) {
  const started = Date.now();
  const page = await open(name, { width: 1920, height: 1080 });
  const [spans, columns, drawn] = await page.evaluate(() => {
    const before = performance.now();
    drawNow();
    return [tracks[0].count, tracks[0].columns?.count ?? 0, performance.now() - before];
  });
  check(Math.max(spans, columns) > 60000 && Date.now() - started < 2000 * BUSY, `${name}: ${spans} spans and ${columns} columns are there after ${Date.now() - started} ms, drawn in ${drawn.toFixed(0)} ms`);
  const frames = await page.evaluate(async () => {
    zoom(0.2, middle());
    const times = [];
    let last = null;
    for (let step = 0; step < 61; step += 1) {
      pan(step % 20 < 10 ? 0.05 : -0.05);
      const now = await new Promise((done) => requestAnimationFrame(() => done(performance.now())));
      if (last !== null) times.push(now - last);
      last = now;
    }
    return times.sort((a, b) => a - b);
  });
  const [median, high] = [frames[30], frames[56]];
  check(median <= 33 * BUSY && high <= 66 * BUSY, `${name}: 60 steps of panning: median ${median.toFixed(1)} ms, p95 ${high.toFixed(1)} ms`);
  if (columns) {
    const box = await page.locator("#lanes canvas").boundingBox();
    await page.mouse.move(box.x + 700, box.y + 16);
    check(/forward \(F\)\s*\d/.test(await page.textContent("#tip")), `${name}: hovering tells what a column stands for`);
    await page.locator("#search").fill("F1");
    check((await page.textContent("#found")).includes("no single actions"), `${name}: the search says that single actions are left out`);
  }
  check(page.said.length === 0, `${name}: nothing on the console ${page.said.join("; ")}`);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await page.close();
}

// Columns that stand for many actions have the time of those, in windows of any size.
for (const name of ["many", "two", "one"]) {
  const page = await open(name);
  const worst = await page.evaluate(() => {
    let seed = 1, worst = 0;
    const random = () => { seed = (seed * 48271) % 2147483647; return seed / 2147483647; };
    for (let round = 0; round < 300; round += 1) {
      const track = tracks[Math.floor(random() * tracks.length)], row = Math.floor(random() * data.rows.length);
      const from = random() * END * 0.9, to = from + Math.max(1, random() ** 3 * (END - from)), count = 1 + Math.floor(random() * 1500);
      const drawn = shares(track, row, [from, to], count, state.hidden), { kinds, spans, idle } = track.rows[row];
      kinds.forEach((kind, place) => {
        let time = 0, wanted = 0;
        for (let column = 0; column < count; column += 1) time += drawn[column * kinds.length + place] * (to - from) / count;
        const within = (start, end) => Math.max(0, Math.min(end, to) - Math.max(start, from));
        for (const span of spans) if (track.familyOf(span) === kind) wanted += within(track.start[span], track.end[span]);
        for (const [, start, end, cause] of idle) if (FAMILIES + cause === kind) wanted += within(start, end);
        worst = Math.max(worst, Math.abs(time - wanted) / (to - from));
      });
    }
    return worst;
  });
  check(worst < 1e-6, `${name}: columns have the time that they stand for (to ${worst.toExponential(1)} of the window)`);
  await page.close();
}

{
  const page = await open("many", { width: 1920, height: 1080 });
  // The pixels of a lane by colour, beside the busy and idle time of the lane.
  const worst = await page.evaluate(() => {
    drawNow();
    const canvas = document.querySelector("#lanes canvas"), ink = canvas.getContext("2d"), scale = ink.getTransform().a;
    const [wide, high] = [Math.round(plotWidth() * scale), Math.round((BAR - 1) * scale)];
    const { data: bytes } = ink.getImageData(Math.round(LEFT * scale), Math.round(laneRows[5].top * scale), wide, high);
    const pixels = new Uint32Array(bytes.buffer), { kinds, spans, idle } = tracks[0].rows[5];
    return Math.max(...kinds.map((kind) => {
      const drawn = pixels.filter((pixel) => pixel === theme.columns[kind]).length / pixels.length;
      const lengths = kind < FAMILIES ? spans.filter((span) => tracks[0].familyOf(span) === kind).map((span) => tracks[0].end[span] - tracks[0].start[span])
        : idle.filter(([, , , cause]) => FAMILIES + cause === kind).map(([, start, end]) => end - start);
      return Math.abs(drawn - lengths.reduce((sum, length) => sum + length, 0) / END);
    }));
  });
  check(worst < 0.03, `many: pixels have the shares of the lane (to ${(100 * worst).toFixed(1)} %)`);
  await page.close();
}

await browser.close();
if (faults.length) {
  console.error(`${faults.length} checks failed:\n${faults.join("\n")}`);
  process.exit(1);
}
