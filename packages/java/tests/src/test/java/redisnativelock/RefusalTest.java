package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.*;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.*;
import redisnativelock.spi.RedisAccess;

/** What the server refuses, and what is done then. */
class RefusalTest extends WithServer {
  private static String whatIsMissing(Locks locks) {
    NativeLockException error = assertThrows(NativeLockException.class, locks.lock("l")::lock);
    assertEquals(NativeLockException.NO_MODULE, error.code());
    return error.getMessage();
  }

  @ParameterizedTest
  @EnumSource
  void aClusterWithoutTheModuleIsToldOfInOneSentence(Library library) {
    try (Server node = Server.cluster()) {
      Locks locks = Library.locks(library.cluster(node.port, Library.CONFIG), Duration.ofSeconds(30));
      assertTrue(whatIsMissing(locks).contains("loadmodule"));
    }
  }

  /** Locks for which one command, when it is sent first, is answered here. */
  private Locks answering(String name, Function<Supplier<CompletableFuture<Object>>, CompletableFuture<Object>> answer) {
    RedisAccess access = Library.JEDIS.access(server.port);
    AtomicBoolean isNext = new AtomicBoolean(true);
    return Library.locks((RedisAccess) java.lang.reflect.Proxy.newProxyInstance(getClass().getClassLoader(),
        new Class<?>[] {RedisAccess.class}, (self, method, arguments) -> {
          boolean isMeant = method.getName().equals("send") && new String(((byte[][]) arguments[0])[0]).equals(name);
          return isMeant && isNext.getAndSet(false) ? answer.apply(() -> access.send((byte[][]) arguments[0]))
              : method.invoke(access, arguments);
        }), Duration.ofSeconds(60));
  }

  @Test
  void anOlderModuleIsRefused() {
    byte[] info = "# lock\r\nlock_version:0.1.9\r\n".getBytes();
    assertTrue(whatIsMissing(answering("INFO", send -> CompletableFuture.completedFuture(info))).contains("0.1.9"));
    byte[] later = "# lock\r\nlock_version:0.10.0\r\n".getBytes();
    assertTrue(answering("INFO", send -> CompletableFuture.completedFuture(later)).lock("l").tryLock());
  }

  @ParameterizedTest
  @CsvSource({"RELEASE,UNANSWERED", "RELEASE,BUSY", "RELEASE,MISCONF", "ACQUIRE,UNANSWERED", "ACQUIRE,BUSY",
      "RELEASE,ERR max number of clients reached", "ACQUIRE,ERR max number of clients reached"})
  void whatPassesIsTriedAgainAndIsNoLoss(String command, String code) throws Exception {
    Locks locks = answering("LOCK." + command, send ->
        (code.equals("UNANSWERED") ? send.get() : CompletableFuture.completedFuture(null))
            .thenCompose(done -> CompletableFuture.failedFuture(NativeLockException.replied(code, null))));
    assertEquals(42, locks.lock("l").<Integer, Exception>call(hold -> 42));
    assertTrue(server.isFree("l"));
  }

  @Test
  void whatIsCarriedOutAfterItWasGivenUpLeavesNothing() {
    CompletableFuture<Object> goesOn = new CompletableFuture<>();
    NativeLock lock = answering("LOCK.ACQUIRE", send -> goesOn.thenCompose(now -> send.get())).lock("l");
    assertThrows(NativeLockException.class, lock::tryLock);
    goesOn.completeOnTimeout(null, 500, TimeUnit.MILLISECONDS).join();
    until(() -> server.info("lock", "lock_grants_immediate") == 1 && server.isFree("l"));
  }

  @ParameterizedTest
  @ValueSource(longs = {0, 20})
  void aTokenThatIsRepliedAfterItsLeaseIsNone(long wait) throws Exception {
    CompletableFuture<Object> ofAnother = new CompletableFuture<>();
    NativeLock lock = answering("LOCK.ACQUIRE", send -> send.get().thenApply(token -> {
      until(() -> server.isFree("l"));
      ofAnother.complete(server.call("LOCK.ACQUIRE", "l", "another", "LEASE", "2000"));
      return token;
    })).lock("l").lease(Duration.ofSeconds(1));
    assertEquals(wait > 0, lock.tryLock(wait, TimeUnit.SECONDS));
    assertTrue(wait == 0 || lock.hold().token() > (Long) ofAnother.join());
  }

  @ParameterizedTest
  @ValueSource(strings = {"LOCK.RENEW", "LOCK.RELEASE"})
  void aRefusalOfWhatWasSentTwiceTellsNothing(String command) {
    IllegalStateException busy = new IllegalStateException("BUSY");
    assertThrows(CompletionException.class, () -> RedisAccess.reply(command, 1, null, busy));
    var error = assertThrows(NativeLockException.class, () -> RedisAccess.reply(command, 2, null, busy));
    assertEquals(NativeLockException.UNANSWERED, error.code());
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
  void aClientThatIsClosedEndsTheCall(Library library) {
    Locks locks = library.locks(server.port);
    Library.closeAll();
    assertThrows(NativeLockException.class, locks.lock("l")::lock);
  }
}
