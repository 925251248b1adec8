package redisnativelock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import redisnativelock.spi.RedisAccess.Link;

/** The subscription to one server, which all waits there share. It ends with its connection; who waits asks anew. */
final class Ear {
  private static final byte[][] PING = Wire.command("PING");

  private final Locks locks;
  private final CompletableFuture<Link> opened = new CompletableFuture<>();
  /** Each ends when the server has answered whether it publishes there to us. */
  private final Map<ByteBuffer, CompletableFuture<?>> channels = new ConcurrentHashMap<>();
  private volatile boolean hasEnded;

  Ear(Locks locks) {
    this.locks = locks;
  }

  void open(byte[] key) {
    locks.access.open(key, this::hear, this::end).whenComplete((link, error) -> {
      if (error != null) {
        end(error);
      } else if (!opened.complete(link)) {
        link.close();
      }
    });
  }

  CompletableFuture<?> subscribe(byte[] channel) {
    ByteBuffer name = ByteBuffer.wrap(channel);
    CompletableFuture<?> answer =
        channels.computeIfAbsent(name, absent -> opened.thenCompose(link -> link.subscribe(channel)));
    // What was refused may be allowed later.
    answer.exceptionally(error -> {
      channels.remove(name);
      return null;
    });
    return hasEnded ? CompletableFuture.failedFuture(new IOException("the subscription has ended")) : answer;
  }

  /** Whether the server is still there. */
  CompletableFuture<?> ping() {
    return hasEnded ? CompletableFuture.completedFuture(null) : opened.thenCompose(link -> link.send(PING));
  }

  boolean hears(byte[] channel) {
    CompletableFuture<?> answer = channels.get(ByteBuffer.wrap(channel));
    return !hasEnded && answer != null && answer.isDone() && !answer.isCompletedExceptionally();
  }

  private void hear(byte[] message) {
    Wire.Told told = Wire.told(message);
    if (told != null) {
      locks.hear(told);
    }
  }

  void end(Throwable why) {
    if (!hasEnded) {
      hasEnded = true;
      locks.forget(this);
      IOException end = new IOException("the subscription has ended", why);
      opened.completeExceptionally(end);
      channels.values().forEach(answer -> answer.completeExceptionally(end));
      opened.thenAccept(Link::close);
    }
  }
}
