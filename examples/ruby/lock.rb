# Work under a lock, with redis-rb.
require "redis"
require "securerandom"

# The read time-out is longer than BLOCK. Nothing else gets through a connection that waits.
redis = Redis.new(url: ENV.fetch("REDIS_URL", "redis://localhost:6379"), read_timeout: 40)
owner = SecureRandom.uuid # a new one for each acquire
block_ms = ENV.fetch("BLOCK_MS", 30_000)
# With HOLD 1 it does no harm that redis-rb sends it again when the connection breaks.
token = redis.call("LOCK.ACQUIRE", "orders:42", owner, "LEASE", 60_000, "BLOCK", block_ms, "HOLD", 1)
abort "orders:42 is busy" if token.nil?
begin
  puts "orders:42 is mine, with token #{token}"
ensure
  begin
    released = redis.call("LOCK.RELEASE", "orders:42", owner, "FENCE", token)
    warn "orders:42: the lease ended before the work did" if released.nil?
  rescue Redis::BaseError => error
    warn "orders:42 is left to its lease: #{error.message}"
  end
end
