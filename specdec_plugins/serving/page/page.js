// Everything on this page is drawn from the events of /generate_stream as they arrive.

const $ = (id) => document.getElementById(id);
const SEPARATOR = "@@"; // of subwords that go on
const SLIDERS = { block: "block_size", beta: "beta", tau: "tau" }; // and their parameters

let info = null;
let controller = null; // of the run under way

class PageError extends Error {} // whose message is for people

function keyed(headers = {}) {
  return $("key").value ? { ...headers, Authorization: `Bearer ${$("key").value}` } : headers;
}

async function* events(parameters, signal) {
  const headers = keyed({ "Content-Type": "application/json" });
  const asked = { ...parameters, ...languagesAsked() };
  const body = JSON.stringify({ inputs: $("source").value, parameters: asked });
  const response = await answer("generate_stream", { method: "POST", headers, body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = JSON.parse(block.slice("data:".length));
      if (event.error) throw new PageError(event.error);
      yield event;
    }
  }
}

async function answer(address, how) {
  const response = await fetch(address, how);
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new PageError(error ?? `The server answered with status ${response.status}.`);
}

// One of the two runs: its rounds, its bar, and its figures.
class Lane {
  constructor(name) {
    this.name = name;
    this.rounds = $(`rounds-${name}`);
    this.bars = $(`bars-${name}`);
    this.rounds.replaceChildren();
    this.bars.replaceChildren();
    $(`time-${name}`).textContent = "";
    $(`count-${name}`).textContent = "";
    this.ends = new Map(); // of the last round of each sentence, in milliseconds
    this.end = this.numRounds = this.numTokens = 0;
    this.texts = [];
    this.text = null; // once it is complete
  }

  add(round) {
    const begin = this.ends.get(round.sentence) ?? 0;
    // Waiting in line is no pass of a model.
    const end = round.ms - round.queue_ms;
    if (!this.ends.has(round.sentence)) this.heading(round.sentence);
    this.ends.set(round.sentence, end);
    this.end = Math.max(this.end, end);
    this.mark(begin, end);
    this.numRounds += 1;
    this.numTokens += round.emitted.length;
    this.texts[round.sentence] = round.text;
    this.draw(round, end - begin);
    const unit = this.name === "spec" ? "round" : "step";
    $(`count-${this.name}`).textContent = `${count(this.numRounds, unit)}, ${this.end.toFixed(0)} ms`;
    $(`time-${this.name}`).textContent = `${this.end.toFixed(0)} ms`;
  }

  heading(sentence) {
    this.bars.append(element("div", "bar"));
    if (sentence === 0) return;
    if (sentence === 1) this.rounds.prepend(element("li", "sentence", "Sentence 1"));
    this.rounds.append(element("li", "sentence", `Sentence ${sentence + 1}`));
  }

  mark(begin, end) {
    const mark = element("i");
    mark.style.setProperty("--begin", begin);
    mark.style.setProperty("--took", end - begin);
    this.bars.lastChild.append(mark);
  }

  draw(round, took) {
    const row = element("li");
    const chips = element("span", "chips");
    const seen = [chips];
    if (this.name === "spec") {
      chips.append(...speculative(round));
      seen.unshift(element("span", "number", `${round.index + 1}`));
      seen.push(element("span", "took", `${took.toFixed(0)} ms`));
    } else {
      chips.append(...round.emitted.map((piece) => chip(piece, "step")));
    }
    for (const part of seen) part.setAttribute("aria-hidden", "true");
    row.append(...seen, element("span", "sr", inWords(round)));
    this.rounds.append(row);
  }
}

// In reading order: what was kept, the model's own token in place of the first that was not,
// and the rest of the draft.
function speculative(round) {
  const chips = round.drafted.map((piece, i) =>
    chip(piece, i < round.accepted ? "accepted" : "rejected"));
  if (round.own) chips.splice(round.accepted, 0, chip(round.emitted.at(-1), round.own));
  return chips;
}

function chip(piece, kind) {
  const joins = piece.text.endsWith(SEPARATOR);
  const text = joins ? piece.text.slice(0, -SEPARATOR.length) : piece.text;
  const ends = text === "</s>";
  const made = element("span", `chip ${kind}`, ends ? "end" : text);
  made.classList.toggle("joins", joins);
  made.classList.toggle("end", ends);
  return made;
}

function inWords(round) {
  const words = (pieces) => pieces.map((p) => p.text.replace("</s>", "end")).join(" ");
  if (!round.drafted.length) return `Step ${round.index + 1}: ${words(round.emitted)}.`;
  const kept = words(round.drafted.slice(0, round.accepted)) || "none";
  const own = round.own ? `; ${round.own}: ${words(round.emitted.slice(-1))}` : "";
  return `Round ${round.index + 1}: ${round.accepted} of ${round.drafted.length} accepted: ${kept}${own}.`;
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function count(n, unit) {
  return `${n} ${unit}${n === 1 ? "" : "s"}`;
}

// Bars of all lanes share one scale, so every new round may shrink what is drawn already.
function scaleBars(lanes) {
  const longest = Math.max(...lanes.map((lane) => lane.end));
  for (const lane of lanes) {
    lane.bars.style.setProperty("--longest", longest);
    const passes = lane.numRounds === 1 ? "1 pass" : `${lane.numRounds} passes`;
    lane.bars.setAttribute("aria-label", `${passes} in ${lane.end.toFixed(0)} milliseconds`);
  }
}

// What stands, with the last block marked. before: the text of the round's sentence until then.
function drawText(round, earlier, before = "") {
  const old = round.text.startsWith(before) ? before : "";
  const fresh = element("span", "fresh", round.text.slice(old.length));
  $("text").replaceChildren([...earlier, old].join(" "), fresh);
}

async function run(name, parameters, lanes, signal) {
  const lane = new Lane(name);
  lanes.push(lane);
  for await (const event of events(parameters, signal)) {
    if (event.round) {
      const { sentence } = event.round;
      const before = lane.texts[sentence];
      lane.add(event.round);
      scaleBars(lanes);
      if (lanes.length === 1) drawText(event.round, lane.texts.slice(0, sentence), before);
    }
    if (event.generated_text !== null) {
      lane.text = event.generated_text;
      lane.lacks = event.truncated ? "The end of a sentence is missing: it reached its length limit." : "";
      if (event.unreadable) lane.lacks = `A sentence is copied: ${event.unreadable}`;
    }
  }
  if (lane.text === null) throw new PageError("The connection ended before the translation did.");
  return lane;
}

// Runs a task, in place of the one under way.
async function begin(task) {
  controller?.abort();
  const mine = new AbortController();
  controller = mine;
  reset();
  busy(true);
  try {
    await task(mine.signal);
  } catch (error) {
    if (controller !== mine) return;
    $("file-done").textContent = "";
    if (!mine.signal.aborted) fail(told(error));
  } finally {
    if (controller === mine) busy(false);
  }
}

async function translate(signal) {
  if (!$("source").value.trim()) {
    $("source").focus();
    throw new PageError("Type a sentence first.");
  }
  const lanes = [];
  $("race").hidden = $("lanes").hidden = false;
  const speculates = info.drafter !== null;
  $("lane-spec").hidden = $("line-spec").hidden = !speculates;
  $("status").textContent = "Translating.";
  const [first, parameters] = speculates ? ["spec", chosen()] : ["plain", {}];
  const lane = await run(first, parameters, lanes, signal);
  $("text").textContent = lane.text;
  if (lane.lacks) fail(lane.lacks);
  $("status").textContent = `Translation: ${lane.text}`;
  if (!speculates) return;
  $("verdict").textContent = `${count(lane.numRounds, "round")}; now the same step by step.`;
  compare(lane, await run("plain", { use_drafter: false }, lanes, signal));
}

function compare(lane, plain) {
  if (!lane.numRounds) {
    $("verdict").textContent = "";
    return;
  }
  const speed = speedUp(plain.end / lane.end);
  const same = lane.text === plain.text ? "the same text" : "a different text";
  const figures = `${count(lane.numRounds, "round")} instead of ${count(plain.numRounds, "step")}, `
    + `${(lane.numTokens / lane.numRounds).toFixed(1)} tokens a round, ${same}; this time `;
  $("verdict").replaceChildren(figures, element("strong", "", speed), ".");
  $("status").textContent = $("verdict").textContent;
}

function speedUp(factor) {
  if (factor > 0.95 && factor < 1.05) return "about as fast";
  return factor > 1 ? `${factor.toFixed(1)} times as fast` : `${(1 / factor).toFixed(1)} times as slow`;
}

function chosen() {
  const values = Object.entries(SLIDERS).map(([id, name]) => [name, Number($(id).value)]);
  return Object.fromEntries(values);
}

// A whole file goes up; its translation waits at an address.
async function translateFile(file, signal) {
  $("file-done").textContent = `Translating ${file.name} …`;
  const asked = languagesAsked();
  const body = new FormData();
  body.append("source", asked.source_lang ?? info.source ?? "auto");
  body.append("target", asked.target_lang ?? info.target ?? "");
  body.append("file", file);
  const response = await answer("translate_file", { method: "POST", headers: keyed(), body, signal });
  const { translatedFileUrl, note } = await response.json();
  const link = element("a", "", `Save the translation of ${file.name}`);
  // By its last part, as another server may stand before this one.
  link.href = `download_file/${translatedFileUrl.split("/").at(-1)}`;
  link.download = file.name;
  $("file-done").replaceChildren(link, note ? ` ${note}` : "");
}

function told(error) {
  return error instanceof PageError ? error.message : "The server cannot be reached; is it running?";
}

function reset() {
  $("file-done").textContent = "";
  $("error").hidden = true;
  $("error").textContent = "";
  for (const id of ["text", "verdict", "status"]) $(id).textContent = "";
  $("race").hidden = $("lanes").hidden = true;
  for (const name of ["spec", "plain"]) new Lane(name);
}

function fail(sentence) {
  $("error").textContent = sentence;
  $("error").hidden = false;
}

function busy(is) {
  $("stop").hidden = !is;
  $("result").setAttribute("aria-busy", String(is));
}

function showSliders() {
  for (const id in SLIDERS) {
    const value = Number($(id).value);
    $(`${id}-value`).textContent = id === "tau" ? value.toFixed(1) : value;
  }
  $("guarantee").textContent = $("beta").value === "1"
    ? "β = 1 is exact: token for token what the large model says on its own, whatever τ."
    : "β above 1 accepts more and may change the text.";
}

async function start() {
  info = await (await answer("info")).json();
  $("block").max = info.max_block_size ?? 25;
  $("beta").max = Math.max(10, info.beta);
  $("tau").max = Math.max(5, info.tau);
  for (const id in SLIDERS) $(id).value = info[SLIDERS[id]];
  showSliders();
  $("sliders").hidden = info.drafter === null;
  $("key-field").hidden = !info.needs_api_key;
  await showLanguages();
  const known = await (await fetch("frontend/settings")).json();
  $("file").accept = known.supportedFilesFormat.join(",");
  const drafter = info.drafter ? `drafter ${info.drafter}, schedule ${info.schedule}` : "no drafter";
  $("model").textContent = `Model ${info.model_id}, ${info.model_dtype} on ${info.model_device_type}, ${drafter}.`;
}

// Of a model with several languages each request says which.
async function showLanguages() {
  const known = await (await fetch("languages")).json();
  const names = new Map(known.map((one) => [one.code, one.name]));
  const sources = known.filter((one) => one.targets.length).map((one) => one.code);
  const targets = [...new Set(known.flatMap((one) => one.targets))];
  if (sources.length > 1 || targets.length > 1) {
    offer($("from-choice"), sources, names, info.source);
    offer($("to-choice"), targets, names, info.target);
    $("languages").hidden = false;
    return;
  }
  $("from").textContent = `from ${languageName(info.source)}`;
  $("to").textContent = `into ${languageName(info.target)}`;
  $("source").lang = info.source ?? "";
  $("text").lang = info.target ?? "";
}

function offer(select, codes, names, chosen) {
  const options = codes.map((code) => new Option(names.get(code), code, false, code === chosen));
  select.replaceChildren(...options);
}

function languagesAsked() {
  if ($("languages").hidden) return {};
  return { source_lang: $("from-choice").value, target_lang: $("to-choice").value };
}

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code; // a model may call its sides what it likes
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (info) begin(translate);
});
$("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("stop").addEventListener("click", () => {
  controller?.abort();
  busy(false);
  $("status").textContent = "Stopped.";
  $("source").focus();
});
for (const id in SLIDERS) {
  $(id).addEventListener("input", showSliders);
  // A new setting shows at once what it does, where there is something to compare with.
  $(id).addEventListener("change", () => {
    if (!$("lanes").hidden) begin(translate);
  });
}
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (info && file) await begin((signal) => translateFile(file, signal));
  $("file").value = "";
});
// Dropped anywhere: a browser would leave the page and show the file.
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    const [file] = event.dataTransfer.files;
    if (info && name === "drop") begin((signal) => translateFile(file, signal));
  });
}
start().catch((error) => fail(told(error)));
