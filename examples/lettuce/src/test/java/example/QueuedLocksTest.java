package example;

import static java.util.concurrent.CompletableFuture.completedFuture;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.KillArgs;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Against the server that REDIS_URL names. */
class QueuedLocksTest {
  private static final String KEY = "a:b,ü"; // a message says how many bytes it has
  private static final int HOUR_MS = 3_600_000;

  private final RedisClient client = RedisClient.create(System.getenv("REDIS_URL"));
  private final RedisCommands<String, String> redis = client.connect().sync();
  // Whoever is not told that the connection broke waits in vain.
  private final QueuedLocks locks = new QueuedLocks(System.getenv("REDIS_URL"), HOUR_MS);

  @BeforeEach
  void somebodyElseHoldsTheLock() {
    redis.flushall();
    eval("return redis.call('LOCK.ACQUIRE', KEYS[1], 'other')");
  }

  @AfterEach
  void end() {
    locks.close();
    client.shutdown();
  }

  private long eval(String script) {
    return redis.eval(script, ScriptOutputType.INTEGER, KEY);
  }

  private void releaseTheLock() {
    eval("return redis.call('LOCK.RELEASE', KEYS[1], 'other')");
  }

  private void awaitPlaces(int count) {
    String script = "local info = redis.call('LOCK.INFO', KEYS[1]) "
        + "for i = 1, #info, 2 do if info[i] == 'waiting' then return info[i + 1] end end";
    while (eval(script) != count) {
      Thread.onSpinWait();
    }
  }

  private CompletableFuture<Long> takeTurn(int waitMs) {
    return locks.withLock(KEY, waitMs, token -> completedFuture(token));
  }

  @Test
  void aBrokenConnection() {
    List<CompletableFuture<Long>> turns =
        Stream.generate(() -> takeTurn(QueuedLocks.WAIT_MS)).limit(20).toList();
    awaitPlaces(20);
    redis.clientList().lines().filter(line -> line.contains("name=" + locks.channel))
        .map(line -> line.substring("id=".length(), line.indexOf(' ')))
        .forEach(id -> redis.clientKill(KillArgs.Builder.id(Long.parseLong(id))));
    releaseTheLock();
    Set<Long> tokens = new HashSet<>();
    turns.forEach(turn -> tokens.add(turn.join()));
    assertEquals(20, tokens.size());
  }

  @Test
  void aTokenThatIsNotItsOwn() {
    CompletableFuture<Long> turn = takeTurn(QueuedLocks.WAIT_MS);
    awaitPlaces(1);
    String owner = locks.waiting.keySet().iterator().next();
    CompletableFuture<String> told = locks.waiting.get(owner);
    redis.publish(locks.channel, "1:0," + KEY.getBytes(StandardCharsets.UTF_8).length + ":" + KEY
        + "," + owner.length() + ":" + owner + ",1:1,4:2000,");
    while (locks.waiting.get(owner) == told) {
      Thread.onSpinWait();
    }
    assertFalse(turn.isDone());
    releaseTheLock();
    assertTrue(turn.join() > 1);
  }

  @Test
  void aWaitThatIsOver() {
    CompletionException error = assertThrows(CompletionException.class, () -> takeTurn(50).join());
    assertInstanceOf(TimeoutException.class, error.getCause());
    awaitPlaces(0);
    assertTrue(locks.waiting.isEmpty());
  }

  @Test
  void aLeaseThatIsOverBeforeTheWork() {
    releaseTheLock();
    PrintStream console = System.err;
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    System.setErr(new PrintStream(said, true, StandardCharsets.UTF_8));
    try {
      locks.withLock(KEY, HOUR_MS, token -> completedFuture(redis.del(KEY))).join();
      takeTurn(HOUR_MS).join();
    } finally {
      System.setErr(console);
    }
    assertEquals(KEY + ": the lease ended before the work did",
        said.toString(StandardCharsets.UTF_8).strip());
  }

  @Test
  void theExampleRuns() {
    PrintStream console = System.out;
    ByteArrayOutputStream output = new ByteArrayOutputStream();
    System.setOut(new PrintStream(output, true));
    try {
      QueuedLocks.main(new String[0]);
    } finally {
      System.setOut(console);
    }
    String report = "100 tasks in 3 sections, never two in one, over 1 connection";
    assertEquals(report, output.toString().strip());
  }
}
