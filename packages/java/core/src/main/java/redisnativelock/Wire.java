package redisnativelock;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.concurrent.*;
import java.util.stream.Stream;

/** What is sent to the server and told by it, and how leases are counted. Times are in nanoseconds. */
final class Wire {
  static final long MILLISECOND = 1_000_000;

  static byte[] bytes(Object word) {
    return word instanceof byte[] already ? already : word.toString().getBytes(UTF_8);
  }

  static byte[][] command(Object... words) {
    return Stream.of(words).map(Wire::bytes).toArray(byte[][]::new);
  }

  /** In whole milliseconds, and one at least. */
  static long milliseconds(long nanos) {
    return Math.max(1, nanos / MILLISECOND);
  }

  /**
   * How long a lease is relied upon whose command was sent at its beginning: one percent less for clocks that run apart,
   * and ten milliseconds for the time it takes to notice.
   */
  static long reliedUpon(long lease) {
    return lease - Math.min(lease / 100 + 10 * MILLISECOND, lease / 2);
  }

  static CompletableFuture<Void> after(long nanos) {
    return new CompletableFuture<Void>().completeOnTimeout(null, Math.max(0, nanos), TimeUnit.NANOSECONDS);
  }

  /** How long to wait before what failed is tried again: ever longer, never in step with others. */
  static long pause(int failures) {
    long most = Math.min(20 * MILLISECOND << Math.min(failures, 10), 1000 * MILLISECOND);
    return ThreadLocalRandom.current().nextLong(most / 2, most);
  }

  /** The end of a place. A token of 0 without an error: it is gone without a grant. */
  record Told(byte[] key, String owner, long token, long lease, String error) {}

  static final Told GONE = new Told(null, null, 0, 0, null);

  /** A message of five netstrings: database, key, owner, result, first lease in ms. Null if it is none. */
  static Told told(byte[] message) {
    String text = new String(message, ISO_8859_1);
    String[] parts = new String[5];
    try {
      for (int part = 0, at = 0; part < 5; part++) {
        int from = text.indexOf(':', at) + 1;
        int to = from + Integer.parseInt(text.substring(at, from - 1));
        parts[part] = text.substring(from, to);
        at = to + 1;
      }
      String error = parts[3].startsWith("-") ? parts[3].substring(1) : null;
      return new Told(parts[1].getBytes(ISO_8859_1), parts[2], error == null ? Long.parseLong(parts[3]) : 0,
          Long.parseLong(parts[4]) * MILLISECOND, error);
    } catch (IndexOutOfBoundsException | NumberFormatException notOurs) {
      return null;
    }
  }
}
