package example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;

/** Against the server that REDIS_URL names. */
class LockTest {
  private final RedisClient redis = Lock.connect(URI.create(System.getenv("REDIS_URL")));
  private final ExecutorService threads = Executors.newFixedThreadPool(8);

  @BeforeEach
  void empty() {
    redis.flushAll();
  }

  @AfterEach
  void end() {
    threads.shutdownNow();
    redis.close();
  }

  @Test
  void oneAtATime() throws Exception {
    redis.set("counter", "0");
    List<Future<?>> adders = new ArrayList<>();
    for (int adder = 0; adder < 8; adder++) {
      adders.add(threads.submit(() -> {
        for (int n = 0; n < 10; n++) {
          Lock.withLock(redis, "l", Lock.BLOCK_MS, token ->
              redis.set("counter", "" + (Integer.parseInt(redis.get("counter")) + 1)));
        }
        return null;
      }));
    }
    for (Future<?> adder : adders) {
      adder.get();
    }
    assertEquals("80", redis.get("counter"));
  }

  @Test
  void aReleaseEndsTheWait() throws Exception {
    CompletableFuture<Long> next = new CompletableFuture<>();
    CompletableFuture<Long> first = new CompletableFuture<>();
    Lock.withLock(redis, "l", Lock.BLOCK_MS, token -> {
      first.complete(token);
      threads.submit(() -> {
        Lock.withLock(redis, "l", Lock.BLOCK_MS, next::complete);
        return null;
      });
      while (!redis.info("clients").contains("blocked_clients:1")) {
        Thread.onSpinWait();
      }
      assertFalse(next.isDone());
    });
    assertTrue(next.get() > first.get());
  }

  @Test
  void aWaitThatIsOver() throws Exception {
    Lock.withLock(redis, "l", Lock.BLOCK_MS, token ->
        assertThrows(TimeoutException.class, () ->
            Lock.withLock(redis, "l", 50, second -> fail("two hold the lock"))));
  }

  @Test
  void aBrokenConnection() throws Exception {
    Lock.withLock(redis, "l", Lock.BLOCK_MS, token ->
        redis.sendCommand(Protocol.Command.CLIENT, "KILL", "TYPE", "normal", "SKIPME", "no"));
    assertFalse(redis.exists("l"));
  }

  @Test
  void aLeaseThatIsOverBeforeTheWork() throws Exception {
    PrintStream console = System.err;
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    System.setErr(new PrintStream(said, true));
    try {
      Lock.withLock(redis, "l", Lock.BLOCK_MS, token -> redis.del("l"));
      Lock.withLock(redis, "l", Lock.BLOCK_MS, token -> { });
    } finally {
      System.setErr(console);
    }
    assertEquals("l: the lease ended before the work did", said.toString().strip());
  }

  @Test
  void theExampleRuns() throws Exception {
    Lock.main(new String[0]);
    assertFalse(redis.exists("orders:42"));
  }
}
