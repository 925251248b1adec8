package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;
import static redisnativelock.Server.until;

import java.util.*;
import java.util.concurrent.*;
import org.junit.jupiter.api.condition.*;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A thousand virtual threads wait, and hold up no thread of the machine. */
@EnabledForJreRange(min = JRE.JAVA_21)
class VirtualThreadsTest extends WithServer {
  private int counter;

  @ParameterizedTest
  @EnumSource
  void aThousandWaitForOneLock(Library library) throws Exception {
    NativeLock lock = library.locks(server.port).lock("l");
    // By name, for this is built for Java 17 too.
    ExecutorService threads = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    lock.lock();
    List<Future<?>> all = new ArrayList<>();
    for (int number = 0; number < 1000; number++) {
      all.add(threads.submit(() -> {
        lock.lock();
        counter++;
        lock.unlock();
      }));
    }
    until(() -> server.places() == 1000);
    Future<?> interrupted = threads.submit(() -> lock.acquire());
    until(() -> server.places() == 1001);
    interrupted.cancel(true);
    until(() -> server.places() == 1000);
    assertTrue(server.text("CLIENT", "LIST").lines().count() < 20);
    lock.unlock();
    Threads.endAll(all);
    assertEquals(1000, counter);
    assertTrue(server.isFree("l"));
    threads.shutdown();
  }
}
