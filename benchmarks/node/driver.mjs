// The contestant on Node: takes commands on stdin and answers on stdout, one JSON object a line, so that its turns
// alternate with those of the Python contestants. It times itself: the pipe is not measured.
import { createHash } from 'node:crypto'
import { createInterface } from 'node:readline'
import { StringDecoder } from 'node:string_decoder'
import { createParser } from 'eventsource-parser'

let chunks = []

// The argument names the decoder: TextDecoder (default) or StringDecoder.
const decoders = {
  TextDecoder() {
    const decoder = new TextDecoder()
    return (chunk) => decoder.decode(chunk, { stream: true })
  },
  StringDecoder() {
    const decoder = new StringDecoder('utf8')
    return (chunk) => decoder.write(chunk)
  },
}
const makeDecoder = decoders[process.argv[2] ?? 'TextDecoder']

function parse(onEvent) {
  const decode = makeDecoder()
  const parser = createParser({ onEvent })
  for (const chunk of chunks) parser.feed(decode(chunk))
}

// What is timed: a fresh decoder and parser, every chunk, each event's data as a string.
function read() {
  let length = 0
  parse((event) => {
    length += event.data.length
  })
  return length
}

function digest() {
  const hash = createHash('sha256')
  let events = 0
  parse((event) => {
    events += 1
    hash.update(`${event.event ?? 'message'}\n${event.data}\0`)
  })
  return { events, digest: hash.digest('hex') }
}

// Reads again until `seconds` have passed; gives the seconds of one reading: of the processor, as in Python, but of the
// wall where those are fewer, so that V8's helper threads, which work beside the parser, are not charged to it.
function turn(seconds) {
  const begun = process.hrtime.bigint()
  const used = process.cpuUsage()
  let calls = 0
  let spent
  do {
    read()
    calls += 1
    const { user, system } = process.cpuUsage(used)
    spent = Math.min(Number(process.hrtime.bigint() - begun) / 1e9, (user + system) / 1e6)
  } while (spent < seconds)
  return spent / calls
}

const commands = {
  // `sizes`: the chunks' sizes. Each chunk gets memory of its own, as a socket would give it.
  load({ stream, sizes }) {
    const bytes = Buffer.from(stream, 'base64')
    let at = 0
    chunks = sizes.map((size) => Uint8Array.prototype.slice.call(bytes, at, (at += size)))
    return { ...digest(), length: read() }
  },
  turn({ seconds }) {
    return { seconds: turn(seconds) }
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...rest } = JSON.parse(line)
  process.stdout.write(`${JSON.stringify(commands[command](rest))}\n`)
}
