package redisnativelock;

import java.io.IOException;
import java.util.Set;
import java.util.concurrent.*;
import java.util.function.Supplier;
import redisnativelock.Wire.Told;
import redisnativelock.spi.RedisAccess.Link;
import redisnativelock.spi.ServerError;

/** One attempt to take a lock, in the thread that asks for it. */
final class Attempt {
  static final long FOREVER = Long.MAX_VALUE;
  static final long REPLY_WITHIN = 5_000 * Wire.MILLISECOND;
  /** How long a thread waits for what it gives back, which then goes on in the background. */
  static final long RELEASE_WITHIN = 500 * Wire.MILLISECOND;
  static final Long DONE = 1L;
  /** A place is asked for so long, again and again. */
  private static final long PLACE_MAX = 300_000 * Wire.MILLISECOND;
  /** How often a place is asked for again while nothing is heard: a message may be lost. */
  private static final long ASK_AGAIN = 10_000 * Wire.MILLISECOND;
  private static final long BLOCK_MAX = 86_400_000 * Wire.MILLISECOND;
  private static final Set<String> PASSING =
      Set.of("UNBLOCKED", "MOVED", "ASK", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS");

  private static final Told GONE = new Told(null, null, 0, 0, null);

  /** A hold that the server told of: granted no earlier than {@code since}, and its lease counts from then on. */
  record Grant(long token, long since, long lease) {}

  private final Locks locks;
  final Request request;
  private final long wait;
  private final boolean isInterruptible;
  private final long firstSent = System.nanoTime();
  /** Whether the server may have a place or a hold for it. */
  private boolean isInDoubt;
  private CompletableFuture<Object> underWay = CompletableFuture.completedFuture(null);
  private volatile CompletableFuture<Told> heard = new CompletableFuture<>();
  private volatile Ear ear;

  Attempt(Locks locks, Request request, long wait, boolean isInterruptible) {
    this.locks = locks;
    this.request = request;
    this.wait = wait;
    this.isInterruptible = isInterruptible;
  }

  /** Whether the same request may succeed later. */
  static boolean mayPass(Throwable error) {
    return error instanceof IOException || error instanceof ServerError refusal && PASSING.contains(refusal.code());
  }

  /** Returns null where the lock was not had in time. */
  Grant take() throws InterruptedException {
    Grant grant = null;
    boolean isCut = true;
    locks.waits.put(request.owner(), this);
    try {
      if (isInterruptible && Thread.interrupted()) {
        throw new InterruptedException();
      }
      grant = loop();
      isCut = false;
      return grant;
    } catch (InterruptedException interrupt) {
      throw interrupt;
    } catch (Exception error) {
      throw NativeLockException.of(request.name(), error);
    } finally {
      if (grant == null) {
        giveUp(isCut);
      }
    }
  }

  private Grant loop() throws Exception {
    // Who does not wait needs no subscription.
    boolean triesOnce = wait <= 0 || locks.listening(request.key()) == null;
    for (int failures = 0; ; failures++) {
      try {
        Grant grant = triesOnce ? ask(request.acquire()) : queue();
        if (grant != null || left() <= 0) {
          return grant;
        }
        triesOnce = false;
      } catch (ServerError | IOException failure) {
        if (wait > 0 && left() <= 0 && failure.getCause() instanceof TimeoutException) {
          return null;
        } else if (left() <= 0 || !mayPass(failure)) {
          throw failure;
        }
        Background.warn(request.name() + " is asked for again", failure);
        if (ear != null) {
          // It may be at a server that is no primary any more.
          ear.end(failure);
          ear = null;
        }
        // By a command the client library learns where the key is now.
        triesOnce = true;
        pause(Background.pause(failures));
      }
    }
  }

  private long left() {
    return wait == FOREVER ? FOREVER : firstSent + wait - System.nanoTime();
  }

  private long within() {
    return wait <= 0 ? REPLY_WITHIN : Math.min(REPLY_WITHIN, Math.max(left(), 50 * Wire.MILLISECOND));
  }

  private <T> T await(CompletableFuture<T> future, long nanos) throws Exception {
    try {
      return isInterruptible ? future.get(nanos, TimeUnit.NANOSECONDS) : Background.join(future, nanos);
    } catch (ExecutionException | TimeoutException failure) {
      throw locks.meaning(failure);
    }
  }

  private void pause(long nanos) throws Exception {
    await(Background.after(Math.min(nanos, left())), FOREVER);
  }

  private Grant ask(byte[][] command) throws Exception {
    return ask(() -> locks.send(command, REPLY_WITHIN), within());
  }

  /** What it is answered with: a token, or 0 for a place; else null. */
  private Grant ask(Supplier<CompletableFuture<Object>> send, long within) throws Exception {
    boolean wasInDoubt = isInDoubt;
    isInDoubt = true;
    long sent = System.nanoTime();
    underWay = send.get();
    try {
      Long reply = (Long) await(underWay, within);
      isInDoubt = wasInDoubt || reply != null;
      return reply == null ? null : new Grant(reply, sent, request.lease());
    } catch (ServerError error) {
      // What there is after SUPERSEDED is another's of this name.
      isInDoubt = !error.code().equals("SUPERSEDED") && (wasInDoubt || !isRefusal(error));
      throw error;
    }
  }

  /** Whether the server has answered that the command has changed nothing. */
  static boolean isRefusal(Throwable error) {
    return error instanceof ServerError refusal && !refusal.code().equals("NOREPLICAS");
  }

  /** Waits by a place in the queue. Returns null if it is to be asked for again. */
  private Grant queue() throws Exception {
    byte[] channel = locks.channel(request.key());
    heard = new CompletableFuture<>();
    Grant grant;
    try {
      Ear known = ear == null ? locks.listening(request.key()) : null;
      if (ear != null) {
        // Nothing was heard there.
        await(ear.ping(), within());
      }
      ear = known != null ? known : locks.ear(request.key(), await(locks.access.node(request.key()), within()));
      await(ear.subscribe(channel), within());
      grant = ask(request.acquire("QUEUE", Wire.milliseconds(Math.min(PLACE_MAX, left())), channel));
    } catch (ServerError error) {
      if (error.code().equals("NOPERM")) {
        // It may not subscribe, or not publish to itself.
        return block();
      }
      throw error;
    }
    if (grant == null || grant.token() > 0) {
      return grant;
    }
    // Nothing is told where its time is over, or the message was lost.
    Told told = await(heard.completeOnTimeout(GONE, Math.min(ASK_AGAIN, left()), TimeUnit.NANOSECONDS), FOREVER);
    if (told.error() != null) {
      ServerError error = new ServerError(told.error(), null);
      // A refusal leaves nothing, and what there is then is another's of this name.
      isInDoubt = !isRefusal(error);
      throw error;
    }
    if (told.token() == 0) {
      // The server has forgotten it, or the subscription has ended.
      pause(10 * Wire.MILLISECOND);
      return null;
    }
    return claim(told.token(), Math.min(told.lease(), request.lease()));
  }

  private Grant claim(long token, long lease) throws Exception {
    // The owner is new, so the grant came after its first request. In a cluster other nodes of a shard pass on what
    // their primary may have taken back: there it claims first.
    boolean isSure = locks.access.slot(request.key()) < 0;
    if (isSure && firstSent + Wire.reliedUpon(lease) - System.nanoTime() >= lease / 4) {
      return new Grant(token, firstSent, lease);
    }
    Grant claimed = ask(request.renew(token, request.lease()));
    return claimed.token() == 1 ? new Grant(token, claimed.since(), request.lease()) : null;
  }

  /** Waits by blocking a connection of its own, for users who may not subscribe. */
  private Grant block() throws Exception {
    CompletableFuture<Object> ended = new CompletableFuture<>();
    CompletableFuture<Link> opening = locks.access.open(request.key(), message -> {}, ended::completeExceptionally);
    try {
      Link link = await(opening, within());
      long left = Math.min(BLOCK_MAX, left());
      byte[][] command = request.acquire("BLOCK", Wire.milliseconds(left));
      Grant grant = ask(() -> CompletableFuture.anyOf(link.send(command), ended), left + REPLY_WITHIN);
      return grant == null ? null : claim(grant.token(), grant.lease());
    } finally {
      opening.thenAccept(Link::close);
    }
  }

  /** Leaves no place and no hold behind. Whoever was interrupted does not wait for that. */
  private void giveUp(boolean isCut) {
    forget();
    if (isInDoubt) {
      long until = System.nanoTime() + Math.max(request.lease(), PLACE_MAX);
      CompletableFuture<?> ended = underWay.handle((reply, error) -> null)
          .thenCompose(done -> locks.insist(request.name(), request::giveUp, until, 0));
      try {
        Background.join(ended, isCut ? 0 : RELEASE_WITHIN);
      } catch (ExecutionException | TimeoutException goesOn) {
        // In the background.
      }
    }
  }

  void forget() {
    locks.waits.remove(request.owner(), this);
  }

  void hear(Told told) {
    heard.complete(told);
  }

  /** The subscription has ended: whoever was heard there asks again. */
  void wake(Ear ended) {
    if (ear == ended) {
      heard.complete(GONE);
    }
  }
}
