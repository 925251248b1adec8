package example;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisLoadingException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import java.util.function.LongConsumer;

/** A lock around a piece of work, with Lettuce. */
public final class Lock {
  /** The commands of the module. */
  private enum Command implements ProtocolKeyword {
    ACQUIRE, RELEASE;

    @Override
    public byte[] getBytes() {
      return ("LOCK." + name()).getBytes(StandardCharsets.US_ASCII);
    }
  }

  static final int LEASE_MS = 60_000; // longer than the work takes
  static final int BLOCK_MS = 30_000; // how long to wait for the lock

  static RedisClient client(String url) {
    RedisURI uri = RedisURI.create(url);
    // The time-out must exceed BLOCK. The default is 60 s.
    uri.setTimeout(Duration.ofMillis(BLOCK_MS + 10_000));
    return RedisClient.create(uri);
  }

  /** Holds the lock {@code key} while {@code work}, which is given the fencing token, runs. */
  static void withLock(RedisClient client, String key, int blockMs, LongConsumer work)
      throws TimeoutException {
    String owner = UUID.randomUUID().toString();
    // A connection of its own, because nothing else gets through while it waits.
    try (StatefulRedisConnection<String, String> redis = client.connect()) {
      Long token = null;
      try {
        // With HOLD 1 it does no harm to send the command again.
        token = call(redis, Command.ACQUIRE, words().addKey(key).add(owner)
            .add("LEASE").add(LEASE_MS).add("BLOCK").add(blockMs).add("HOLD").add(1));
        if (token == null) {
          throw new TimeoutException(key + " is busy");
        }
        work.accept(token);
      } finally {
        // Without FENCE it gives back a hold whose token did not arrive, too.
        Long released = call(redis, Command.RELEASE, words().addKey(key).add(owner));
        if (token != null && released == null) {
          System.err.println(key + ": the lease ended before the work did");
        }
      }
    }
  }

  private static CommandArgs<String, String> words() {
    return new CommandArgs<>(StringCodec.UTF8);
  }

  /**
   * When a connection breaks, Lettuce sends what was under way again, but for the first command,
   * which it may fail. Each command here may be sent again.
   */
  private static Long call(StatefulRedisConnection<String, String> redis, Command command,
      CommandArgs<String, String> words) {
    while (true) {
      try {
        return redis.sync().dispatch(command, new IntegerOutput<>(StringCodec.UTF8), words);
      } catch (RedisException error) {
        if (!(error.getCause() instanceof IOException || error instanceof RedisLoadingException)) {
          throw error;
        }
        LockSupport.parkNanos(10_000_000); // Lettuce connects anew, or the server starts.
      }
    }
  }

  public static void main(String[] arguments) throws TimeoutException {
    String url = System.getenv().getOrDefault("REDIS_URL", "redis://localhost:6379");
    RedisClient client = client(url);
    try {
      withLock(client, "orders:42", BLOCK_MS, token -> {
        // Whatever is written under the lock carries the token, and late writes fail:
        // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
        System.out.println("orders:42 is mine, with token " + token);
      });
    } finally {
      client.shutdown();
    }
  }
}
