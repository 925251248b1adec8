<?php
// Work under a lock, with phpredis.
$redis = new Redis();
$url = parse_url(getenv('REDIS_URL') ?: 'redis://localhost:6379');
$redis->connect($url['host'], $url['port']);
// Longer than BLOCK. Nothing else gets through a connection that waits.
$redis->setOption(Redis::OPT_READ_TIMEOUT, 40);
$owner = bin2hex(random_bytes(16)); // a new one for each acquire
$block_ms = getenv('BLOCK_MS') ?: 30000;
// With HOLD 1 it does no harm to send it again when the connection breaks.
$token = $redis->rawCommand('LOCK.ACQUIRE', 'orders:42', $owner, 'LEASE', 60000, 'BLOCK', $block_ms, 'HOLD', 1);
if ($token === false) { // null, or an error
    fwrite(STDERR, ($redis->getLastError() ?? 'orders:42 is busy') . "\n");
    exit(1);
}
try {
    echo "orders:42 is mine, with token $token\n";
} finally {
    try {
        if ($redis->rawCommand('LOCK.RELEASE', 'orders:42', $owner, 'FENCE', $token) === false) {
            fwrite(STDERR, "orders:42: the lease ended before the work did\n");
        }
    } catch (RedisException $error) {
        fwrite(STDERR, "orders:42 is left to its lease: {$error->getMessage()}\n");
    }
}
