package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import redisnativelock.spi.RedisAccess;

/** What the server refuses, and what is done then. */
class RefusalTest extends WithServer {
  @ParameterizedTest
  @CsvSource({"JEDIS, resetchannels", "JEDIS, resetchannels &redislock:* -subscribe", "LETTUCE, resetchannels",
      "LETTUCE, resetchannels &redislock:* -subscribe", "LETTUCE, resetchannels &redislock:* -publish"})
  void whoMayNotSubscribeBlocksAConnectionOfItsOwn(Library library, String rights) throws Exception {
    String[] user = {"ACL", "SETUSER", "deaf", "on", ">deaf", "~*", "+@all"};
    String[] all = Arrays.copyOf(user, user.length + rights.split(" ").length);
    System.arraycopy(rights.split(" "), 0, all, user.length, all.length - user.length);
    server.call(all);
    NativeLock lock = Library.locks(library.access(server.port, "deaf"), Duration.ofSeconds(30)).lock("l");
    lock.lock();
    assertFalse(Threads.begin(() -> lock.tryLock(100, TimeUnit.MILLISECONDS)).end());
    Threads<Boolean> waiting = Threads.begin(() -> {
      lock.lock();
      lock.unlock();
      return true;
    });
    if (!rights.contains("-publish")) {
      until(() -> server.info("clients", "blocked_clients") == 1);
      assertEquals(0, server.places());
    }
    lock.unlock();
    assertTrue(waiting.end());
    // The pool's, one that listens, and the one that looks.
    until(() -> server.isFree("l") && server.connections() <= 10);
  }

  @ParameterizedTest
  @EnumSource
  void aServerWithoutTheModuleIsToldOfInOneSentence(Library library) {
    try (Server plain = Server.withoutTheModule()) {
      Locks locks = library.locks(plain.port);
      String message = assertThrows(NoModuleException.class, locks.lock("l")::lock).getMessage();
      assertTrue(message.contains("loadmodule"), message);
      assertThrows(NoModuleException.class, locks.lock("l")::tryLock);
    }
  }

  /** An access that answers one command itself. */
  private RedisAccess answering(RedisAccess access, String name, Object answer) {
    return (RedisAccess) java.lang.reflect.Proxy.newProxyInstance(getClass().getClassLoader(),
        new Class<?>[] {RedisAccess.class}, (self, method, arguments) -> {
          boolean isMeant = method.getName().equals("send") && new String(((byte[][]) arguments[0])[0]).equals(name);
          return isMeant ? CompletableFuture.completedFuture(answer) : method.invoke(access, arguments);
        });
  }

  @Test
  void anOlderModuleIsRefused() {
    byte[] info = "# lock\r\nlock_version:0.1.9\r\n".getBytes();
    Locks locks = Library.locks(answering(Library.JEDIS.access(server.port, null), "INFO", info), Duration.ofSeconds(1));
    assertTrue(assertThrows(NoModuleException.class, locks.lock("l")::lock).getMessage().contains("0.1.9"));
    byte[] later = "# lock\r\nlock_version:0.10.0\r\n".getBytes();
    assertTrue(Library.locks(answering(Library.JEDIS.access(server.port, null), "INFO", later), Duration.ofSeconds(1))
        .lock("l").tryLock());
  }

  @ParameterizedTest
  @EnumSource
  void aKeyThatIsNoLock(Library library) {
    server.call("HSET", "data", "field", "value");
    server.call("SET", "text", "value");
    Locks locks = library.locks(server.port);
    assertTrue(assertThrows(NativeLockException.class, locks.lock("data")::lock).getMessage().contains("NOTALOCK"));
    assertThrows(NativeLockException.class, () -> locks.lock("text").tryLock(1, TimeUnit.SECONDS));
    assertTrue(locks.waits.isEmpty());
  }

  @ParameterizedTest
  @EnumSource
  void whatIsNotKnownToBeSafe(Library library) throws Exception {
    NativeLock lock = library.locks(server.port).lock("l");
    server.call("CONFIG", "SET", "lock.min-replicas", "1");
    server.call("CONFIG", "SET", "lock.replicas-timeout", "100");
    assertThrows(NotSafeException.class, lock::tryLock);
    Threads<Boolean> waiting = Threads.begin(() -> {
      lock.lock();
      return true;
    });
    until(() -> server.text("INFO", "errorstats").contains("NOREPLICAS"));
    server.call("CONFIG", "SET", "lock.min-replicas", "0");
    assertTrue(waiting.end(), "who waits asks again");
  }

  @ParameterizedTest
  @EnumSource
  void aClientThatIsClosedEndsTheCall(Library library) {
    Locks locks = library.locks(server.port);
    Library.closeAll();
    assertThrows(NativeLockException.class, locks.lock("l")::lock);
  }

  @Test
  void aCycleOfThreadsThatWaitForEachOther() throws Exception {
    Locks locks = Library.JEDIS.locks(server.port);
    // An owner is new for each acquire, so the server sees a cycle only if it is made by hand.
    Request first = new Request("a", "one".getBytes(), "one", 1, 1_000_000_000L, true, 0);
    Request second = new Request("b", "two".getBytes(), "two", 1, 1_000_000_000L, true, 0);
    Hold one = locks.acquire(first, 0, true, null);
    Hold two = locks.acquire(second, 0, true, null);
    Request crossed = new Request("a", "two".getBytes(), "two", 1, 1_000_000_000L, true, 0);
    Threads<Hold> waiting = Threads.begin(() -> locks.acquire(crossed, Attempt.FOREVER, true, null));
    until(() -> server.places() == 1);
    Request closing = new Request("b", "one".getBytes(), "one", 1, 1_000_000_000L, true, 0);
    String message =
        assertThrows(DeadlockException.class, () -> locks.acquire(closing, Attempt.FOREVER, true, null)).getMessage();
    assertTrue(message.contains("two"), message);
    // As it is told when another request under the name that waits takes its place over.
    server.call("PUBLISH", new String(locks.channel(second.key())), "1:0,3:two,1:a,13:-SUPERSEDED x,1:0,");
    assertInstanceOf(SupersededException.class, waiting.failure());
    assertEquals(1, server.places(), "it is another's now");
    server.call("LOCK.RELEASE", "two", "a");
    assertTrue(one.release());
    assertTrue(two.release());
  }
}
