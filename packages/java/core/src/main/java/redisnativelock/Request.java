package redisnativelock;

import java.util.ArrayList;
import java.util.List;

/**
 * What is asked for. Times are in nanoseconds.
 *
 * @param limit 1 for a lock that is held alone, {@link #SHARED} for a shared one
 */
record Request(String owner, byte[] key, String name, int limit, long lease, boolean isRenewed, long atLeast) {
  static final int SHARED = Integer.MAX_VALUE;

  /** With HOLD 1 it does no harm to send it again. */
  byte[][] acquire(Object... how) {
    List<Object> words = new ArrayList<>(
        List.of("LOCK.ACQUIRE", key, owner, "LEASE", Wire.milliseconds(lease), "HOLD", 1));
    words.addAll(List.of(how));
    if (limit > 1) {
      words.addAll(limit == SHARED ? List.of("SHARED") : List.of("LIMIT", limit));
    }
    return Wire.command(words.toArray());
  }

  byte[][] renew(long token, long nanos) {
    return Wire.command("LOCK.RENEW", key, owner, "LEASE", Wire.milliseconds(nanos), "FENCE", token);
  }

  byte[][] release(long token) {
    return Wire.command("LOCK.RELEASE", key, owner, "FENCE", token);
  }

  /** Ends a place, and a hold that was not told of. */
  byte[][] giveUp() {
    return Wire.command("LOCK.RELEASE", key, owner);
  }
}
