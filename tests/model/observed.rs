//! What the run sees of the server, as text and numbers.

use std::collections::BTreeMap;

use redis::Value;
use redis_lock_testing::Client;

use crate::commands::{DATABASES, UNIT_OF_LEASES};

/// Lists what `World::listing` does, after how many clients are blocked.
const LISTING: &str = "\
local lines = {string.match(redis.call('info', 'clients'), 'blocked_clients:(%d+)')} \
local unit, time = tonumber(ARGV[2]), redis.call('time') \
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000) \
local function shown(value) \
  local limit, token, ending = string.match(value, '^(%d+) (%d+) (%d+)$') \
  if not limit then return value end \
  local left = math.ceil((tonumber(ending) - now_ms) / unit) \
  return limit .. '/' .. token .. '/' .. (left > 0 and left or 'over') \
end \
for db = 0, tonumber(ARGV[1]) - 1 do \
  redis.call('select', db) \
  local keys = redis.call('keys', '*') \
  table.sort(keys) \
  for _, key in ipairs(keys) do \
    local line = db .. ' ' .. key \
    if redis.call('type', key).ok == 'hash' then \
      local flat, fields = redis.call('hgetall', key), {} \
      for i = 1, #flat, 2 do fields[#fields + 1] = flat[i] .. '=' .. shown(flat[i + 1]) end \
      table.sort(fields) \
      line = line .. ' ' .. table.concat(fields, ' ') \
    else \
      line = line .. ' text' \
    end \
    local ttl = redis.call('pttl', key) \
    if ttl >= 0 then line = line .. ' ttl ' .. math.ceil(ttl / unit) end \
    lines[#lines + 1] = line \
  end \
end \
return table.concat(lines, '\\n') .. '\\n'";

/// How many clients are blocked, and then all that is stored, a key a line.
pub fn listing(client: &mut Client) -> String {
    let databases = DATABASES.to_string();
    let unit = UNIT_OF_LEASES.to_string();
    let words = ["EVAL", LISTING, "0", &databases, &unit].map(str::as_bytes);
    match client.words(&words) {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("the listing failed: {other:?}"),
    }
}

/// What `INFO` shows of the module.
pub fn counters(client: &mut Client) -> BTreeMap<String, u64> {
    let info = client.bulk("INFO lock");
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let numbers = fields.map(|(name, number)| (name.into(), number.trim().parse().unwrap()));
    numbers.collect()
}

/// A command, for the report.
pub fn sentence(words: &[Vec<u8>]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| match word.as_slice() {
            [b'i' | b'l', .., b';'] => "<Redisson's script>".into(),
            word => word.escape_ascii().to_string(),
        })
        .collect();
    words.join(" ")
}

/// A reply, for the report.
pub fn shown(reply: &Value) -> String {
    match reply {
        Value::Nil => "null".into(),
        Value::Int(n) => n.to_string(),
        Value::Array(replies) => {
            let replies: Vec<String> = replies.iter().map(shown).collect();
            format!("[{}]", replies.join(", "))
        }
        Value::ServerError(error) => format!("-{}", error.code()),
        Value::BulkString(bytes) => bytes.escape_ascii().to_string(),
        other => format!("{other:?}"),
    }
}
