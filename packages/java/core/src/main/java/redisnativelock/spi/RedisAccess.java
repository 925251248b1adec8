package redisnativelock.spi;

import java.util.concurrent.*;
import java.util.function.Consumer;
import redisnativelock.NativeLockException;

/** The client library, as the locks use it. No method blocks; futures may fail with whatever the library throws. */
public interface RedisAccess {
  /** Threads for what blocks. */
  Executor THREADS = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "redis-native-lock");
    thread.setDaemon(true);
    return thread;
  });
  /** Replied to a renewal that the library has sent more than once: another one of them may be carried out yet. */
  Long RENEWED_TWICE = 2L;

  /**
   * What an error means: {@link NativeLockException#replied} where the server has answered, {@link
   * NativeLockException#UNANSWERED}, which is tried again, where nobody knows whether it got the command; or {@link
   * NativeLockException#FAILED}.
   */
  NativeLockException meaning(Throwable error);

  /** The slot of a key in a cluster; else -1. */
  int slot(byte[] key);

  /** Sends a command to the primary that serves its second word. The reply is null, a {@code Long} or {@code byte[]}. */
  CompletableFuture<Object> send(byte[]... command);

  /** The reply to a command that the library has sent so many times, over a new connection or where it was led. */
  static Object reply(String command, int times, Object reply, Throwable error) {
    if (times > 1 && (error != null || reply == null && command.equals("LOCK.RELEASE"))) {
      throw new NativeLockException(NativeLockException.UNANSWERED, "it was sent more than once: " + error, error);
    } else if (error != null) {
      throw new CompletionException(error);
    }
    return times > 1 && command.equals("LOCK.RENEW") && reply.equals(1L) ? RENEWED_TWICE : reply;
  }

  /** Is called when a command was not answered in time. The connection it went over is not to be used again. */
  default void suspect() {}

  /** Something that is equal for all keys that one server serves: their waits share one subscription. */
  CompletableFuture<?> node(byte[] key);

  /** Opens a connection of its own to the primary that serves the key. {@code ended} is called when it is gone. */
  CompletableFuture<Link> open(byte[] key, Consumer<byte[]> messages, Consumer<Throwable> ended);

  /** A connection for messages, or for a command that blocks. Once it has ended it is not mended. */
  interface Link {
    /** Subscribes, in a cluster to a sharded channel. Where the server ends a subscription, the connection ends. */
    CompletableFuture<?> subscribe(byte[] channel);

    CompletableFuture<Object> send(byte[]... command);

    void close();
  }
}
