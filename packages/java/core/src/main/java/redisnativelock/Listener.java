package redisnativelock;

import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.*;
import redisnativelock.spi.RedisAccess.Link;

/** The subscription to one server, which all waits there share. It ends with its connection; who waits asks anew. */
final class Listener {
  private final CompletableFuture<Link> opened = new CompletableFuture<>();
  /** Each ends when the server has answered whether it publishes there to us. */
  private final Map<ByteBuffer, CompletableFuture<?>> channels = new ConcurrentHashMap<>();
  final CompletableFuture<Wire.Told> ended = new CompletableFuture<>();

  void open(Locks locks, byte[] key) {
    locks.access.open(key, locks::hear, this::end).whenComplete((link, error) -> {
      if (error != null) {
        end(error);
      } else if (!opened.complete(link)) {
        link.close();
      }
    });
  }

  CompletableFuture<?> subscribe(byte[] channel) {
    CompletableFuture<?> answer = channels.computeIfAbsent(ByteBuffer.wrap(channel),
        absent -> opened.thenCompose(link -> link.subscribe(channel)).orTimeout(Attempt.REPLY_WITHIN, TimeUnit.NANOSECONDS));
    return answer.whenComplete((done, refused) -> {
      if (refused != null) {
        // What was refused may be allowed later.
        end(refused);
      }
    });
  }

  boolean hears(byte[] channel) {
    CompletableFuture<?> answer = channels.get(ByteBuffer.wrap(channel));
    return !ended.isDone() && answer != null && answer.isDone() && !answer.isCompletedExceptionally();
  }

  /** Where nothing was heard, the server is asked whether it still publishes there to us. */
  void doubt(byte[] channel) {
    channels.remove(ByteBuffer.wrap(channel));
  }

  void end(Throwable why) {
    if (ended.complete(Wire.GONE)) {
      var end = new NativeLockException(NativeLockException.UNANSWERED, "the subscription has ended: " + why, why);
      opened.completeExceptionally(end);
      channels.values().forEach(answer -> answer.completeExceptionally(end));
      opened.thenAccept(Link::close);
    }
  }
}
