// Follows one turn to its end, over as many connections as that takes: each goes on behind the last event that was seen.

import { eventsOf } from "./events.js";

const FIRST_MS = 200, LONGEST_MS = 5000;   // between two attempts; each pause is drawn from its upper half
const MORE_MS = 5000;                      // how much longer than the turn goes on without us we try

const wait = (ms, signal) => new Promise((resolve) => {
  const over = () => { clearTimeout(timer); removeEventListener("online", over); resolve(); };
  const timer = setTimeout(over, ms);
  addEventListener("online", over, { once: true });
  signal.addEventListener("abort", over, { once: true });
});
const pause = (attempt, signal) => wait(Math.min(LONGEST_MS, FIRST_MS * 2 ** attempt) * (0.5 + Math.random() / 2), signal);

/** What a gateway says in the place of a stream. */
export async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  return { type: body.error?.type ?? `HTTP ${response.status}`, message: body.error?.message };
}

/** What says whose the turn is; without a token the browser's cookie or a proxy does. */
const owned = (turn) => (turn.owner ? { "levada-owner": turn.owner } : {});
const address = (turn) => `turns/${encodeURIComponent(turn.id)}`;

/**
 * Give each event of `turn` to `view` once. `response`: the connection that is open already, or null. `live`: what the
 * gateway says of itself; where no turn lingers, a connection that is lost is the end.
 */
export async function follow(turn, view, response, live, signal) {
  let lost = null, attempt = 0, why = {};   // since when nothing comes, and what the gateway says of it, if anything
  for (;;) {
    if (response) {
      try {
        for await (const event of watched(response, live.heartbeat_s * 2500 + 2000)) {
          view.take(event);
          why = event.type === "error" ? JSON.parse(event.data) : {};
          if (!event.id) continue;   // said in the log's place: that it gives nothing
          lost = null;
          attempt = 0;
          view.connected(true);
          turn.last = event.id;
        }
      } catch { /* lost: that it was the network's fault or a proxy's makes no difference */ }
    }
    if (signal.aborted || view.told) return;
    if (!live.linger_s) return view.close();
    lost ??= performance.now();
    if (performance.now() - lost > live.linger_s * 1000 + MORE_MS) return view.leave(performance.now() - lost, why);
    view.connected(false);
    await pause(attempt++, signal);
    if (signal.aborted) return;
    const headers = { accept: "text/event-stream", ...owned(turn), ...(turn.last ? { "last-event-id": turn.last } : {}) };
    response = await fetch(`${address(turn)}/events`, { headers, cache: "no-store", signal }).catch(() => null);
    if (signal.aborted) return;
    if (!response || response.status >= 500 || response.status === 429) {
      why = response ? await refusal(response) : {};
      response = null;
    } else if (response.status === 204) return view.close();
    else if (!response.ok) return view.fail({ kind: "truncated", ...(await refusal(response)) });
  }
}

/** Yield events; give up a connection that has been silent for too long: a dead one may never say so. */
async function* watched(response, silence_ms) {
  const reader = response.body.getReader();
  let timer = 0;
  const awake = () => {
    clearTimeout(timer);
    timer = setTimeout(() => reader.cancel().catch(() => {}), silence_ms);
  };
  awake();
  try {
    yield* eventsOf(reader, awake);
  } finally {
    clearTimeout(timer);
  }
}

/** Stop a turn, also where the gateway cannot be reached just now. */
export async function stop(turn, live) {
  const until = performance.now() + live.linger_s * 1000;
  const { signal } = new AbortController();
  for (let attempt = 0; ; attempt++) {
    const answer = await fetch(address(turn), { method: "DELETE", headers: owned(turn), keepalive: true }).catch(() => null);
    if ((answer && answer.status < 500) || performance.now() > until) return;
    await pause(attempt, signal);
  }
}

// One turn that runs, kept over a reload of the page: in this tab alone, and gone with it.
const KEPT = "levada-turn";

export function keep(turn) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ ...turn, last: "" }));   // a new page begins at the beginning
  } catch { /* a browser that keeps nothing: a reload forgets the turn, as it would without this */ }
}

export function kept() {
  try {
    const turn = JSON.parse(sessionStorage.getItem(KEPT));
    return typeof turn?.id === "string" && typeof turn.question === "string" ? turn : null;
  } catch {
    return null;
  }
}

export function forget() {
  try {
    sessionStorage.removeItem(KEPT);
  } catch { /* as above */ }
}
