"use strict";
const at = (id) => document.getElementById(id);
const NAIVE = { zero: "naive: no change", mean: "naive: mean of the training", previous: "naive: as before", majority: "naive: more frequent direction" };

function headers() {
  const key = sessionStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, body) {
  const answer = await fetch(path, { headers: headers(), ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) });
  at("keyed").hidden = at("keyed").hidden && answer.status !== 401;
  const reply = await answer.json();
  if (!answer.ok) throw new Error(reply.error);
  return reply;
}

function cell(text, kind = "td", numeric = false) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (numeric) made.className = "num";
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function drawn(name, settings, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(settings)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function chart(dates, closes) {
  const [left, right, top, bottom] = [52, 812, 12, 228];
  const [low, high] = [Math.min(...closes), Math.max(...closes)];
  const x = (number) => left + ((right - left) * number) / (closes.length - 1);
  const y = (close) => (high > low ? bottom - ((bottom - top) * (close - low)) / (high - low) : (top + bottom) / 2);
  const parts = [low, (low + high) / 2, high].flatMap((close) => [
    drawn("line", { x1: left, x2: right, y1: y(close), y2: y(close) }),
    drawn("text", { x: left - 8, y: y(close) + 4, "text-anchor": "end" }, close.toPrecision(4)),
  ]);
  const last = closes.length - 1;
  for (const [number, anchor] of [[0, "start"], [Math.round(last / 2), "middle"], [last, "end"]])
    parts.push(drawn("text", { x: x(number), y: 252, "text-anchor": anchor }, dates[number]));
  parts.push(drawn("polyline", { points: closes.map((close, number) => `${x(number)},${y(close)}`).join(" ") }));
  at("chart").replaceChildren(...parts);
}

function number(value, unit) {
  const text = unit === "log return" ? `${(100 * value).toFixed(3)} %` : value.toFixed(3);
  return (unit === "log return" && value > 0 ? "+" : "") + text.replace("-", "\u2212");
}

async function forecast(ticker) {
  const prices = await ask(`/v1/prices/${encodeURIComponent(ticker)}`);
  const reply = await ask("/v1/forecast", prices);
  if (at("ticker").value !== ticker) return; // another was chosen meanwhile
  chart(prices.dates, prices.close);
  at("caption").textContent = `Closing prices of ${ticker}, ${prices.dates[0]} to ${reply.as_of}`;
  at("title").textContent = `${ticker} at the close of ${reply.session}`;
  at("unit").textContent = reply.unit;
  at("forecasts").replaceChildren(
    row(cell(`run ${reply.run}`, "th"), cell(number(reply.forecast, reply.unit), "td", true)),
    ...Object.entries(reply.naive).map(([name, value]) => row(cell(NAIVE[name] || `naive: ${name}`), cell(number(value, reply.unit), "td", true))),
  );
  at("answer").hidden = false;
}

function percent(value) {
  return value === null ? "unknown" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)} %`.replace("-", "\u2212");
}

async function record() {
  const { runs } = await ask("/v1/scores");
  const rows = runs.map((one) => {
    const gain = one.improvement;
    const text = gain ? `${percent(gain.value)} (${percent(gain.low)} to ${percent(gain.high)}), '${gain.over}'` : "prices are not known yet";
    const error = gain ? `${one[gain.metric].toPrecision(4)} ${gain.metric}` : "";
    return row(cell(`${one.run} (${one.role})`, "th"), ...[one.answers, one.judged, error, text].map((value) => cell(value, "td", true)));
  });
  at("scores").replaceChildren(...rows);
  at("record").hidden = !rows.length;
}

async function show(work) {
  at("problem").textContent = "";
  try {
    await work();
  } catch (error) {
    at("problem").textContent = error.message;
  }
}

async function begin() {
  const reply = await ask("/v1/models");
  at("model").textContent = reply.model;
  const run = reply.champion;
  at("what").textContent = run ? `run ${run.run}, version ${run.version}, task ${run.task}` : "no run is promoted yet";
  const { tickers } = await ask("/v1/prices");
  at("ticker").replaceChildren(...tickers.map((name) => cell(name, "option")));
  at("ticker").disabled = !tickers.length;
  at("prices").hidden = !tickers.length;
  at("note").textContent = tickers.length || !run
    ? "Daily returns are close to unpredictable: compare each forecast with the naive ones."
    : `This model takes no prices: POST to ${run.paths.join(" or ")}.`;
  const asked = decodeURIComponent(location.hash.slice(1));
  if (tickers.includes(asked)) at("ticker").value = asked;
  if (tickers.length) await forecast(at("ticker").value);
  await record();
}

at("ticker").addEventListener("change", () => {
  history.replaceState(null, "", `#${encodeURIComponent(at("ticker").value)}`);
  show(() => forecast(at("ticker").value));
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value);
  show(begin);
});
show(begin);
