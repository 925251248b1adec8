package example;

import static java.util.concurrent.CompletableFuture.completedFuture;
import static java.util.concurrent.CompletableFuture.failedFuture;
import static java.util.concurrent.CompletableFuture.supplyAsync;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisLoadingException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;

/** Many waits for locks over one connection, with Lettuce and RESP3. */
public final class QueuedLocks implements AutoCloseable {
  /** The commands of the module. */
  private enum Command implements ProtocolKeyword {
    ACQUIRE, RELEASE, RENEW;

    @Override
    public byte[] getBytes() {
      return ("LOCK." + name()).getBytes(StandardCharsets.US_ASCII);
    }
  }

  static final int LEASE_MS = 60_000; // longer than the work takes
  static final int WAIT_MS = 30_000; // how long to wait for the lock
  static final int ASK_AGAIN_MS = 10_000; // a message may be lost
  private static final Executor SOON =
      CompletableFuture.delayedExecutor(10, TimeUnit.MILLISECONDS);

  final String channel = "locks:" + UUID.randomUUID();
  /** The owner of each place, and its result. */
  final Map<String, CompletableFuture<String>> waiting = new ConcurrentHashMap<>();
  private final RedisClient client = RedisClient.create();
  final StatefulRedisPubSubConnection<String, String> redis;
  private final int askAgainMs;

  QueuedLocks(String url, int askAgainMs) {
    this.askAgainMs = askAgainMs;
    RedisURI uri = RedisURI.create(url);
    uri.setClientName(channel);
    redis = client.connectPubSub(StringCodec.UTF8, uri);
    redis.addListener(new RedisPubSubAdapter<>() {
      @Override
      public void message(String channel, String message) {
        List<String> parts = netstrings(message);
        tell(parts.get(2), parts.get(3));
      }

      @Override
      public void subscribed(String channel, long count) {
        // If anew, what was told meanwhile is lost.
        waiting.keySet().forEach(owner -> tell(owner, "0"));
      }
    });
    // First of all, because nothing is granted to a place that nobody listens for.
    redis.sync().subscribe(channel);
  }

  @Override
  public void close() {
    client.shutdown();
  }

  private void tell(String owner, String result) {
    CompletableFuture<String> told = waiting.get(owner);
    if (told != null) {
      told.complete(result);
    }
  }

  /** The parts of a message: database, key, owner, result, first lease in ms. */
  private static List<String> netstrings(String message) {
    ByteBuffer bytes = StandardCharsets.UTF_8.encode(message);
    List<String> parts = new ArrayList<>();
    while (bytes.hasRemaining()) {
      int length = 0;
      for (byte digit = bytes.get(); digit != ':'; digit = bytes.get()) {
        length = length * 10 + digit - '0';
      }
      byte[] part = new byte[length];
      bytes.get(part).get();
      parts.add(new String(part, StandardCharsets.UTF_8));
    }
    return parts;
  }

  /** Holds the lock {@code key} while {@code work}, which is given the fencing token, is under way. */
  <T> CompletableFuture<T> withLock(String key, int waitMs, LongFunction<CompletionStage<T>> work) {
    String owner = UUID.randomUUID().toString();
    // Without FENCE it gives the place up, and a hold as well.
    CommandArgs<String, String> release = words(key, owner);
    long endNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
    return acquire(key, owner, endNs)
        .whenComplete((token, error) -> waiting.remove(owner))
        // Async, because nothing may hold up Lettuce's own threads.
        .thenComposeAsync(token -> {
          release.add("FENCE").add(token);
          return work.apply(token);
        })
        .handle((result, error) -> call(Command.RELEASE, release).thenCompose(released -> {
          boolean hasFence = release.count() > 2; // more than key and owner
          if (hasFence && released == null) {
            System.err.println(key + ": the lease ended before the work did");
          }
          return error == null ? completedFuture(result) : CompletableFuture.<T>failedFuture(error);
        }))
        .thenCompose(released -> released);
  }

  private CompletableFuture<Long> acquire(String key, String owner, long endNs) {
    long leftMs = TimeUnit.NANOSECONDS.toMillis(endNs - System.nanoTime());
    if (leftMs <= 0) {
      return failedFuture(new TimeoutException(key + " is busy"));
    }
    CompletableFuture<String> told = new CompletableFuture<>();
    // Before the request, because the message may come before its reply.
    waiting.put(owner, told);
    // The same request again keeps the place.
    return call(Command.ACQUIRE, words(key, owner)
        .add("LEASE").add(LEASE_MS).add("QUEUE").add(leftMs).add(channel))
        .thenCompose(token -> token > 0 ? completedFuture(token)
            : told.completeOnTimeout("0", Math.min(leftMs, askAgainMs), TimeUnit.MILLISECONDS)
                .thenCompose(result -> claim(key, owner, result))
                .thenCompose(claimed ->
                    claimed > 0 ? completedFuture(claimed) : acquire(key, owner, endNs)));
  }

  /** The token that was told, if it can be claimed, else 0. */
  private CompletableFuture<Long> claim(String key, String owner, String result) {
    if (result.startsWith("-")) {
      return failedFuture(new RedisException(result.substring(1)));
    }
    long token = Long.parseLong(result);
    // A token that is told has a short lease until it is claimed.
    return token == 0 ? completedFuture(0L) : call(Command.RENEW, words(key, owner)
        .add("LEASE").add(LEASE_MS).add("FENCE").add(token))
        .thenApply(renewed -> renewed * token);
  }

  private static CommandArgs<String, String> words(String key, String owner) {
    return new CommandArgs<>(StringCodec.UTF8).addKey(key).add(owner);
  }

  /**
   * When a connection breaks, Lettuce sends what was under way again, but for the first command,
   * which it may fail. Each command here may be sent again, but not at
   * once, because on the broken connection it would fail at once, too.
   */
  private CompletableFuture<Long> call(Command command, CommandArgs<String, String> words) {
    return redis.async().dispatch(command, new IntegerOutput<>(StringCodec.UTF8), words)
        .toCompletableFuture().exceptionallyCompose(error ->
            error instanceof IOException || error instanceof RedisLoadingException
                ? supplyAsync(() -> call(command, words), SOON).thenCompose(again -> again)
                : failedFuture(error));
  }

  public static void main(String[] arguments) {
    String url = System.getenv().getOrDefault("REDIS_URL", "redis://localhost:6379");
    Set<Integer> inside = ConcurrentHashMap.newKeySet();
    Executor later = CompletableFuture.delayedExecutor(1, TimeUnit.MILLISECONDS);
    try (QueuedLocks locks = new QueuedLocks(url, ASK_AGAIN_MS)) {
      List<CompletableFuture<Void>> tasks = new ArrayList<>();
      for (int task = 0; task < 100; task++) {
        int section = task % 3;
        tasks.add(locks.withLock("orders:" + section, WAIT_MS, token -> {
          // Whatever is written under the lock carries the token, and late writes fail:
          // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
          if (!inside.add(section)) {
            throw new IllegalStateException("two are in a section");
          }
          return CompletableFuture.runAsync(() -> inside.remove(section), later);
        }));
      }
      tasks.forEach(CompletableFuture::join);
      long connections = locks.redis.sync().clientList().lines()
          .filter(line -> line.contains("name=" + locks.channel)).count();
      System.out.println("100 tasks in 3 sections, never two in one, over "
          + connections + " connection");
    }
  }
}
