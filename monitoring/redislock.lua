#!lua flags=no-writes,allow-stale
-- The counters of the lock module for redis_exporter, which leaves out what modules tell:
--   redis_exporter --script redislock.lua
-- Each becomes redis_script_values{key="lock_..."}. It runs at each scrape, on replicas too.
local values = {}
local function tell(name, value)
  values[#values + 1] = name
  values[#values + 1] = value
end
for name, value in redis.call('INFO', 'lock'):gmatch('(lock_[%w_]+):(-?%d+)\r') do
  tell(name, value)
end
-- The server has no line for an error that has not happened yet, and a rise needs a zero.
local errors = redis.call('INFO', 'errorstats')
tell('lock_errors_noreplicas', errors:match('errorstat_NOREPLICAS:count=(%d+)') or '0')
return values
