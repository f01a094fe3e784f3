// What a person is told of a turn, in words.

export const STATES = {
  connecting: ["Waiting", "for the first word"],
  streaming: ["Answering", "provisional until confirmed"],
  thinking: ["Thinking", "provisional until confirmed"],
  finished: ["Confirmed", ""],
  error: ["No answer", ""],
  cancelled: ["Stopped", "incomplete, not an answer"],
};

// Its provider has finished, and yet it is no whole answer: by finish reason.
const EARLY = {
  length: ["Ended early", "at the length limit"],
  content_filter: ["Ended early", "by the provider's content filter"],
  refusal: ["Refused", "the model declined to answer"],
  pause: ["Paused", "the provider would go on"],
  error: ["Ended early", "the provider named an error"],
  other: ["Ended early", "for a reason of the provider's own"],
};

/** Why a finished answer is not a whole one: a word and a hint; null where it is whole. */
export const early = (reason) => (reason === "stop" || reason === "tool_use" ? null : EARLY[reason] ?? EARLY.other);
export const EMPTY = ["The answer is empty", "its provider finished without one"];

const PROBLEMS = {
  truncated: ["The answer was cut", "The connection ended before the provider had finished."],
  broken: ["The answer was cut", "The connection to the gateway ended before the answer was whole."],
  provider: ["The provider reported an error", ""],
  transport: ["The connection failed", ""],
  protocol: ["The reply could not be read", "It was not in the form that this provider's answers have."],
  timeout: ["No answer in time", "The provider took too long."],
  too_large: ["The answer was too large", "It went over a limit of this gateway."],
  blocked: ["The answer was held back", "A reviewer did not release it."],
  gateway: ["The gateway did not start a turn", ""],
};

/** A title and a sentence for an error. `arrived`: whether there was a draft, which goes. */
export function problem(kind, arrived) {
  const [title, words] = PROBLEMS[kind] ?? PROBLEMS.provider;
  return [title, [words, arrived ? "What had arrived was not a whole answer, so it is not shown." : ""].filter(Boolean).join(" ")];
}

/** The same for a turn that the page could not read on for `ms`; `type`: what the gateway says of it, if anything. */
export function left(ms, type) {
  const long = `for ${Math.round(ms / 1000)} s`;
  const what = !type ? `The gateway could not be reached ${long}.`
    : type === "live_log_unavailable" ? `The gateway could be reached, but not its log of live turns, ${long}.`
    : `The gateway did not go on with this answer ${long}.`;
  return [type ? "The answer does not go on" : "The gateway cannot be reached",
    `${what} The answer may have gone on. “Read on” looks for it; “Try again” asks the provider anew.`];
}

export const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

/** How long to wait, in whole units: 7 s, 12 min, 3 h. */
export function wait(ms) {
  const s = Math.ceil(ms / 1000);
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.ceil(s / 60)} min` : `${Math.ceil(s / 3600)} h`;
}
