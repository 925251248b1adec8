package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.*;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import redisnativelock.shedlock.NativeLockProvider;

/** The cases of ShedLock's compatibility kit for providers that can extend, and ShedLock in Spring. */
class ShedLockTest extends WithServer {
  private LockProvider provider;

  @BeforeEach
  void begin() {
    provider = new NativeLockProvider(Library.JEDIS.locks(server.port));
  }

  private Optional<SimpleLock> lock(String name, Duration atMost, Duration atLeast) {
    return provider.lock(new LockConfiguration(ClockProvider.now(), name, atMost, atLeast));
  }

  private Optional<SimpleLock> lock(String name) {
    return lock(name, Duration.ofMinutes(5), Duration.ZERO);
  }

  @Test
  void aTaskKeepsOthersOutUntilItUnlocks() {
    for (int round = 0; round < 10; round++) {
      SimpleLock lock = lock("name").orElseThrow();
      assertFalse(server.isFree("name"));
      assertTrue(lock("name").isEmpty());
      SimpleLock other = lock("other").orElseThrow();
      lock.unlock();
      assertTrue(server.isFree("name"));
      other.unlock();
      assertThrows(IllegalStateException.class, lock::unlock);
    }
  }

  @Test
  void aLockEndsAfterLockAtMostFor() {
    SimpleLock late = lock("name", Duration.ofMillis(500), Duration.ZERO).orElseThrow();
    until(() -> server.isFree("name"));
    SimpleLock lock = lock("name", Duration.ofSeconds(50), Duration.ZERO).orElseThrow();
    late.unlock();
    assertFalse(server.isFree("name"), "what is another's stays");
    lock.unlock();
    lock("name", Duration.ZERO, Duration.ZERO); // It may be over before the reply, and is not taken then.
    until(() -> server.isFree("name"));
  }

  @Test
  void aLockIsKeptForLockAtLeastFor() {
    long begun = System.nanoTime();
    lock("name", Duration.ofSeconds(4), Duration.ofSeconds(2)).orElseThrow().unlock();
    assertTrue(lock("name").isEmpty());
    until(() -> server.isFree("name"));
    assertTrue(System.nanoTime() - begun > 1_900_000_000L && System.nanoTime() - begun < 3_900_000_000L);
    lock("name").orElseThrow().unlock();
    begun = System.nanoTime();
    lock("name", Duration.ofSeconds(2), Duration.ofSeconds(2)).orElseThrow();
    until(() -> server.isFree("name"));
    assertTrue(System.nanoTime() - begun > 1_990_000_000L, "where its task does not end in time, too");
  }

  @Test
  void aLockIsExtended() {
    SimpleLock first = lock("name", Duration.ofSeconds(60), Duration.ZERO).orElseThrow();
    SimpleLock second = first.extend(Duration.ofSeconds(10), Duration.ZERO).orElseThrow();
    assertTrue((Long) server.call("PTTL", "name") > 9_000);
    assertThrows(IllegalStateException.class, () -> first.extend(Duration.ofSeconds(10), Duration.ZERO));
    assertThrows(IllegalStateException.class, first::unlock);
    SimpleLock third = second.extend(Duration.ofSeconds(10), Duration.ofSeconds(9)).orElseThrow();
    third.unlock();
    assertFalse(server.isFree("name"));
    assertThrows(IllegalStateException.class, () -> third.extend(Duration.ofSeconds(10), Duration.ZERO));
  }

  @Test
  void aLockThatIsOverIsNotExtended() {
    SimpleLock lock = lock("name", Duration.ofMillis(500), Duration.ZERO).orElseThrow();
    until(() -> server.isFree("name"));
    assertTrue(lock.extend(Duration.ofSeconds(10), Duration.ZERO).isEmpty());
    assertTrue(server.isFree("name"));
  }

  @Test
  void eightThreadsCountUnderTwoLocks() throws Exception {
    int[] counters = new int[2];
    Threads.endAll(Threads.begin(8, number -> {
      int own = number % 2;
      for (int left = number == 0 ? 10 : 100; left > 0; ) {
        Optional<SimpleLock> lock = lock("lock" + own, Duration.ofMinutes(5), Duration.ofMillis(5));
        if (lock.isPresent()) {
          int seen = counters[own];
          Thread.sleep(1);
          counters[own] = seen + 1;
          lock.get().unlock();
          left--;
        }
      }
    }));
    assertArrayEquals(new int[] {310, 400}, counters);
  }

  @Test
  void shedLocksOwnKeepAliveExtendsIt() throws Exception {
    var scheduler = java.util.concurrent.Executors.newSingleThreadScheduledExecutor();
    provider = new KeepAliveLockProvider((ExtensibleLockProvider) provider, scheduler);
    SimpleLock lock = lock("name", Duration.ofSeconds(30), Duration.ZERO).orElseThrow();
    assertFalse(server.isFree("name"));
    lock.unlock();
    assertTrue(server.isFree("name"));
    scheduler.shutdownNow();
  }

  @Test
  void aTaskOfShedLocksOwnProviderIsSkipped() {
    server.call("SET", "name", "somebody");
    assertTrue(lock("name").isEmpty());
    server.call("HSET", "other", "field", "value");
    assertThrows(NativeLockException.class, () -> lock("other"));
  }

  /** A task as an application has it. */
  public static class Task {
    final AtomicInteger runs = new AtomicInteger();

    @SchedulerLock(name = "report", lockAtMostFor = "10s", lockAtLeastFor = "5s")
    public void report() {
      LockAssert.assertLocked();
      runs.incrementAndGet();
    }
  }

  @EnableSchedulerLock(defaultLockAtMostFor = "30s")
  static class Application {}

  @Test
  void aTaskInSpringRunsOnce() {
    try (AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext()) {
      context.register(Application.class, Task.class);
      context.registerBean(LockProvider.class, () -> provider);
      context.refresh();
      Task task = context.getBean(Task.class);
      task.report();
      task.report();
      assertFalse(server.isFree("report"));
    }
    Task own = new Task();
    assertThrows(IllegalStateException.class, own::report);
  }
}
