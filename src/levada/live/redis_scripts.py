"""What Redis does in one step: the Lua scripts of live turns.

A turn is two keys and a channel with one hash tag, so that they live on one node of a cluster. The stream holds the
entries; the number of an entry and the turn's token are its id, so that ids have no gaps and are of one turn. The hash
holds:

    o  digest of the owner        t  token                  a  attempt that started it
    n  number of the last entry   f  of the first one kept  b  bytes kept      q  batches written
    s  state, once ended          k  kind                   y  type            p  who asked it to stop
    l  when the lease ends        w  when a reader was last there              both in ms of the server's clock
    i  for how many ms it is taken

The owner's digests are compared with `==`: Lua interns strings, so that it compares two addresses, in constant time.
Entries are told on the channel as well, so that readers need not ask; it may lose them, the stream does not.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

__all__ = ["PAGE", "RENEW", "START", "STOP", "WRITE", "Script"]

PRELUDE: Final = """
local meta, stream, channel = KEYS[1], KEYS[2], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function id(seq, token) return string.format('%.0f-%s', seq, token) end

local function keep(ms)
  redis.call('PEXPIRE', meta, ms)
  redis.call('PEXPIRE', stream, ms)
end

local function tell(token, first, entries)
  redis.call('PUBLISH', channel, cmsgpack.pack({token, first, entries}))
end

-- End the turn where its producer did not. First what takes no memory: so that Redis lets us write on where it is full.
local function lose(token, last, type, keep_ms)
  local seq = last + 1
  keep(keep_ms)
  redis.call('XADD', stream, id(seq, token), 'e', 'end', 'd', '', 's', 'error', 'k', 'truncated', 't', type)
  redis.call('HSET', meta, 'n', seq, 's', 'error', 'k', 'truncated', 'y', type)
  keep(keep_ms)  -- of a stream that was not there
  tell(token, seq, {{'end', '', 'error', 'truncated', type}})
end

-- Whether the stream is what the hash says: one of them may have been evicted.
local function whole(first, last) return redis.call('XLEN', stream) == last - first + 1 end

local function signals(m)
  return {'ok', m.p or '', m.w and math.max(0, now - m.w) or -1}
end

local function read()
  local found = redis.call('HMGET', meta, 'o', 't', 'n', 'f', 'b', 'q', 's', 'k', 'y', 'p', 'l', 'w', 'i')
  if not found[2] then return nil end
  return {o = found[1], t = found[2], n = tonumber(found[3]), f = tonumber(found[4]), b = tonumber(found[5]),
          q = tonumber(found[6]), s = found[7], k = found[8] or '', y = found[9] or '', p = found[10],
          l = tonumber(found[11]), w = tonumber(found[12] or nil), i = tonumber(found[13])}
end
"""


class Script(NamedTuple):
    """A script and its name on the server."""

    text: str
    sha: str


def _script(body: str) -> Script:
    text = PRELUDE + body
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# ARGV: channel, digest, attempt, three digits, lease_ms, keep_ms. The token is the time in µs and the digits: larger
# than that of any turn before, and not that of another turn.
START: Final = _script("""
local there = redis.call('HMGET', meta, 't', 'a')
if there[1] then
  if there[2] == ARGV[3] then return {'ok', there[1]} end
  return {'exists'}
end
local token = string.format('%s%06d%s', time[1], time[2], ARGV[4])
-- First what takes memory: once a script has written, Redis lets it write on where memory is full.
redis.call('HSET', meta, 'o', ARGV[2], 't', token, 'a', ARGV[3], 'n', 0, 'f', 1, 'b', 0, 'q', 0, 'i', ARGV[5],
           'l', now + ARGV[5])
redis.call('DEL', stream)
redis.call('PEXPIRE', meta, ARGV[5] + ARGV[6])
return {'ok', token}
""")

# ARGV: channel, token, number, before, lease_ms, keep_ms, max_entries, max_bytes, state, kind, type, event, data, …
WRITE: Final = _script("""
local m = read()
if not m then return {'gone'} end
if m.t ~= ARGV[2] then return {'taken'} end
local number, keep_ms = tonumber(ARGV[3]), tonumber(ARGV[6])
if number <= m.q then return signals(m) end  -- a repeat, however late it arrives
if m.s then return {'ended', m.s, m.k, m.y} end
local intact = whole(m.f, m.n)
if m.q ~= number - 1 or m.n ~= tonumber(ARGV[4]) or not intact then
  if not intact then redis.call('DEL', stream) redis.call('HSET', meta, 'f', m.n + 1) end
  lose(m.t, m.n, 'entries_lost', keep_ms)
  return {'lost'}
end
local first, last, bytes, state = m.f, m.n, m.b, ARGV[9]
local told = {}
for at = 12, #ARGV, 2 do
  local event, data = ARGV[at], ARGV[at + 1]
  last = last + 1
  bytes = bytes + #event + #data
  if state ~= '' and at == #ARGV - 1 then
    redis.call('XADD', stream, id(last, m.t), 'e', event, 'd', data, 's', state, 'k', ARGV[10], 't', ARGV[11])
    told[#told + 1] = {event, data, state, ARGV[10], ARGV[11]}
  else
    redis.call('XADD', stream, id(last, m.t), 'e', event, 'd', data)
    told[#told + 1] = {event, data}
  end
end
local max_entries, max_bytes, from = tonumber(ARGV[7]), tonumber(ARGV[8]), first
while last - first + 1 > max_entries or bytes > max_bytes do
  for _, entry in ipairs(redis.call('XRANGE', stream, id(first, '0'), '+', 'COUNT', 32)) do
    if last - first + 1 <= max_entries and bytes <= max_bytes then break end
    bytes = bytes - #entry[2][2] - #entry[2][4]
    first = first + 1
  end
end
if first > from then redis.call('XTRIM', stream, 'MINID', id(first, '0')) end
if state == '' then
  local lease_ms = tonumber(ARGV[5])
  redis.call('HSET', meta, 'n', last, 'f', first, 'b', bytes, 'q', number, 'l', now + lease_ms)
  keep(lease_ms + keep_ms)
  -- A reader marks twice a lease that it is there: without marks nobody listens.
  if m.w and now - m.w <= 3 * lease_ms then tell(m.t, m.n + 1, told) end
else
  redis.call('HSET', meta, 'n', last, 'f', first, 'b', bytes, 'q', number, 's', state, 'k', ARGV[10], 'y', ARGV[11])
  keep(keep_ms)
  tell(m.t, m.n + 1, told)
end
return signals(m)
""")

# ARGV: channel, token, lease_ms, keep_ms
RENEW: Final = _script("""
local m = read()
if not m then return {'gone'} end
if m.t ~= ARGV[2] then return {'taken'} end
if m.s then return {'ended', m.s, m.k, m.y} end
redis.call('HSET', meta, 'l', now + ARGV[3])
keep(ARGV[3] + ARGV[4])
return signals(m)
""")

# ARGV: channel, digest, seq, token ('0': the start), entries (1 or 0), mark (1 or 0), keep_ms, page_entries,
# page_bytes, stale: a lease that ran out by the reader's clock, or 0
PAGE: Final = _script("""
local m = read()
if not m or m.o ~= ARGV[2] then return {'unknown'} end
if ARGV[6] == '1' then redis.pcall('HSET', meta, 'w', now) end  -- a hint: where memory is full, readers read
if not m.s and (now > m.l or m.l == tonumber(ARGV[10])) then
  lose(m.t, m.n, 'producer_lost', tonumber(ARGV[7]))
  m.n, m.s, m.k, m.y = m.n + 1, 'error', 'truncated', 'producer_lost'
end
local found, after = {}, tonumber(ARGV[3])
if ARGV[5] == '1' then
  if ARGV[4] ~= '0' and ARGV[4] ~= m.t then return {'other'} end
  if after > m.n then return {'future'} end
  if not whole(m.f, m.n) then return {'before', id(m.n, m.t)} end
  if after < m.f - 1 then return {'before', id(m.f - 1, m.t)} end
  local most, size, most_size, last = tonumber(ARGV[8]), 0, tonumber(ARGV[9]), after
  while last < m.n and #found < most and size <= most_size do
    local count = math.min(32, most - #found)
    for _, entry in ipairs(redis.call('XRANGE', stream, id(last + 1, '0'), '+', 'COUNT', count)) do
      found[#found + 1] = entry[2]
      size = size + #entry[2][4]
      last = last + 1
      if size > most_size then break end
    end
  end
end
return {'ok', m.t, m.n, m.s or '', m.k, m.y, m.p or '', m.l - now, m.l, m.i, found}
""")

# ARGV: channel, digest, by, keep_ms
STOP: Final = _script("""
local m = read()
if not m or m.o ~= ARGV[2] then return {'unknown'} end
if m.s then return {'ended', m.s, m.k, m.y} end
if not m.p then
  keep(math.max(0, m.l - now) + ARGV[4])  -- as it is; after it we may write where memory is full
  redis.call('HSET', meta, 'p', ARGV[3])
end
tell(m.t, 0, m.p or ARGV[3])
return {'ok'}
""")
