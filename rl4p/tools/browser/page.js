"use strict";
// Texts of the model reach the page only as text nodes.

const {term, shades, samples} = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("filters");
const list = document.getElementById("samples");
const more = document.querySelector("#more button");
const details = document.getElementById("token");
const AT_A_TIME = 20;
let matching = [];
let chosen = null;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function figure(x, digits) {
  if (x === null || x === undefined) return "absent";
  return typeof x === "number" ? x.toFixed(digits) : x;
}

function verdict(sample) {
  return sample.right === null ? "not graded" : sample.right ? "right" : "wrong";
}

function fill(name, values, any) {
  const select = form.elements[name];
  const option = (value, text) => {
    const made = element("option", text);
    made.value = value;
    select.append(made);
  };
  option("", any);
  for (const value of values) option(String(value), String(value));
  select.closest("label").hidden = values.length < 2;
}

function distinct(of) {
  return [...new Set(samples.map(of).filter((value) => value !== null && value !== undefined))];
}

function matches(sample, choice) {
  const text = choice.search.toLowerCase();
  return (!choice.task || sample.task === choice.task)
    && (!choice.right || verdict(sample) === choice.right)
    && (!choice.step || String(sample.step) === choice.step)
    && (!choice.status || sample.status === choice.status)
    && (!text || [sample.prompt, sample.response, sample.answer, sample.id]
      .some((part) => part && part.toLowerCase().includes(text)));
}

const size = (sample) => sample.length ?? sample.response.length;
const reward = (sample, absent) => typeof sample.reward === "number" ? sample.reward : absent;
const ORDERS = {
  given: () => 0,
  longest: (a, b) => size(b) - size(a),
  shortest: (a, b) => size(a) - size(b),
  lowest: (a, b) => reward(a, Infinity) - reward(b, Infinity) || 0,
  highest: (a, b) => reward(b, -Infinity) - reward(a, -Infinity) || 0,
};

function update() {
  const choice = Object.fromEntries(new FormData(form));
  matching = samples.filter((sample) => matches(sample, choice)).sort(ORDERS[choice.order]);
  const right = matching.filter((sample) => sample.right).length;
  const graded = matching.filter((sample) => sample.right !== null).length;
  document.getElementById("count").textContent =
    `${matching.length} of ${samples.length} samples`
    + (graded ? `, ${right} of ${graded} graded are right (${term} is 1 or more)` : "");
  list.replaceChildren();
  choose(null);
  show();
}

function show() {
  const begin = list.childElementCount;
  for (const sample of matching.slice(begin, begin + AT_A_TIME)) list.append(card(sample));
  more.parentElement.hidden = list.childElementCount >= matching.length;
}

function card(sample) {
  const article = element("article");
  const head = element("header");
  const add = (text, className) => head.append(element("span", text, className));
  if (sample.step !== null) add(`step ${sample.step}`);
  if (sample.id !== null) add(sample.id);
  if (sample.number !== null) add(`sample ${sample.number}`);
  add((sample.right === null ? "" : sample.right ? "\u2713 " : "\u2717 ") + verdict(sample), "verdict");
  const terms = Object.entries(sample.terms).map(([name, grade]) => `${name} ${figure(grade, 2)}`);
  add(`reward ${figure(sample.reward, 3)}` + (terms.length ? ` (${terms.join(", ")})` : ""));
  add(`advantage ${figure(sample.advantage, 3)}`);
  add(sample.length === null ? "length absent" : `${sample.length} tokens`);
  add(sample.status ?? "status absent");
  article.append(head);
  article.append(element("div", "prompt (not trained)", "label"));
  article.append(element("pre", sample.rendered ?? sample.prompt, "prompt"));
  const tokens = sample.tokens;
  article.append(element("div", tokens ? "response" : "response (its tokens are absent)", "label"));
  article.append(tokens ? shaded(tokens) : element("pre", sample.response));
  for (const turn of sample.turns ?? []) {
    article.append(element("div", turn.title, "label"));
    article.append(element("pre", turn.text));
    for (const [kind, line] of turn.lines) article.append(element("pre", line, kind));
  }
  if (sample.failure !== null) {
    article.append(element("div", "the environment failed", "label"));
    article.append(element("pre", sample.failure));
  }
  if (sample.answer !== null) {
    article.append(element("div", "reference answer", "label"));
    article.append(element("pre", sample.answer));
  }
  return article;
}

function shaded(tokens) {
  const pre = element("pre", null, "tokens");
  pre.tabIndex = 0;
  pre.tokens = tokens;
  pre.setAttribute("aria-label", "Response. Left and right arrow keys choose a token.");
  tokens.texts.forEach((text, i) => {
    const out = tokens.loss && tokens.loss[i] === false;
    const shade = tokens.shades ? tokens.shades[i] : null;
    const span = element("span", text, out ? "masked" : shade ? `s${shade}` : "");
    if (!text) span.classList.add("empty");
    pre.append(span);
  });
  return pre;
}

function choose(span) {
  if (chosen) chosen.classList.remove("chosen");
  chosen = span;
  details.hidden = !span;
  if (!span) return;
  span.classList.add("chosen");
  const tokens = span.parentElement.tokens;
  const i = [...span.parentElement.children].indexOf(span);
  const of = (name) => tokens[name] ? tokens[name][i] : null;
  const logprob = of("logprobs");
  const inside = of("loss");
  details.replaceChildren(
    element("span", `token ${i} of ${tokens.texts.length}`),
    element("code", tokens.texts[i] || "(part of the next character)"),
    element("span", `id ${of("ids") ?? "absent"}`),
    element("span", `log p ${figure(logprob, 4)}`),
    element("span", `p ${typeof logprob === "number" ? Math.exp(logprob).toFixed(4) : "absent"}`),
    element("span", inside === null ? "mask absent" : inside ? "in the loss" : "not in the loss"),
  );
  if (of("advantages") !== null) {
    details.append(element("span", `advantage ${figure(of("advantages"), 4)}`));
  }
}

function tokenAt(event) {
  return event.target.closest("pre.tokens > span");
}

list.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse" && tokenAt(event)) choose(tokenAt(event));
});
list.addEventListener("click", (event) => {
  if (tokenAt(event)) choose(tokenAt(event));
});
list.addEventListener("keydown", (event) => {
  const pre = event.target.closest("pre.tokens");
  if (!pre || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  const inside = chosen && chosen.parentElement === pre;
  const next = event.key === "ArrowRight" ? "nextElementSibling" : "previousElementSibling";
  choose(inside ? chosen[next] ?? chosen : pre.firstElementChild);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
form.addEventListener("input", update);
form.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", show);

fill("task", distinct((sample) => sample.task), "all tasks");
fill("right", distinct(verdict), "right and wrong");
fill("step", distinct((sample) => sample.step).sort((a, b) => b - a), "all steps");
fill("status", distinct((sample) => sample.status), "all statuses");
if (samples.some((sample) => sample.tokens)) {
  const legend = document.getElementById("legend");
  legend.append("Probability of each token:");
  shades.forEach((label, i) => legend.append(element("span", label, i ? `s${i}` : "")));
  if (samples.some((sample) => sample.tokens?.loss?.includes(false))) {
    legend.append(element("span", "not in the loss", "masked"));
  }
}
update();
