package example;

import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeoutException;
import java.util.function.LongConsumer;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.executors.RetryableCommandExecutor;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.util.JedisURIHelper;

/** A lock around a piece of work, with Jedis. */
public final class Lock {
  private static final ProtocolCommand ACQUIRE =
      () -> "LOCK.ACQUIRE".getBytes(StandardCharsets.US_ASCII);
  private static final ProtocolCommand RELEASE =
      () -> "LOCK.RELEASE".getBytes(StandardCharsets.US_ASCII);

  static final int LEASE_MS = 60_000; // longer than the work takes
  static final int BLOCK_MS = 30_000; // how long to wait for the lock

  static RedisClient connect(URI uri) {
    // A waiter keeps a connection busy. The pool must be larger than the
    // number of threads that wait; its default is 8.
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(64);
    // The read time-out of sendBlockingCommand must exceed BLOCK, and that of
    // sendCommand is 2 s.
    DefaultJedisClientConfig config = DefaultJedisClientConfig.builder(uri)
        .blockingSocketTimeoutMillis(BLOCK_MS + 10_000).build();
    PooledConnectionProvider connections =
        new PooledConnectionProvider(JedisURIHelper.getHostAndPort(uri), config, pool);
    // Each command here may be sent again when its connection breaks. More than
    // 8 times, because all 8 idle connections of the pool may have.
    return RedisClient.builder().connectionProvider(connections).commandExecutor(
        new RetryableCommandExecutor(connections, 12, Duration.ofSeconds(10))).build();
  }

  /** Holds the lock {@code key} while {@code work}, which is given the fencing token, runs. */
  static void withLock(RedisClient redis, String key, int blockMs, LongConsumer work)
      throws TimeoutException {
    String owner = UUID.randomUUID().toString();
    Long token = null;
    try {
      // With HOLD 1 it does no harm to send the command again.
      token = (Long) redis.sendBlockingCommand(ACQUIRE, key, owner,
          "LEASE", "" + LEASE_MS, "BLOCK", "" + blockMs, "HOLD", "1");
      if (token == null) {
        throw new TimeoutException(key + " is busy");
      }
      work.accept(token);
    } finally {
      // Without FENCE it gives back a hold whose token did not arrive, too.
      if (redis.sendCommand(RELEASE, key, owner) == null && token != null) {
        System.err.println(key + ": the lease ended before the work did");
      }
    }
  }

  public static void main(String[] arguments) throws TimeoutException {
    String url = System.getenv().getOrDefault("REDIS_URL", "redis://localhost:6379");
    try (RedisClient redis = connect(URI.create(url))) {
      withLock(redis, "orders:42", BLOCK_MS, token -> {
        // Whatever is written under the lock carries the token, and late writes fail:
        // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
        System.out.println("orders:42 is mine, with token " + token);
      });
    }
  }
}
