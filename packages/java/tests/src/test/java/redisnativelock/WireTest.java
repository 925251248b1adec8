package redisnativelock;

import static org.junit.jupiter.api.Assertions.*;

import org.junit.jupiter.api.Test;

/** Words of the wire. */
class WireTest {
  @Test
  void messagesAreFiveNetstrings() {
    Wire.Told told = Wire.told("1:0,3:k:,,1:o,2:42,4:2000,".getBytes());
    assertArrayEquals("k:,".getBytes(), told.key());
    assertEquals("o", told.owner());
    assertEquals(42, told.token());
    assertEquals(2_000_000_000L, told.lease());
    assertNull(told.error());
    assertEquals("DEADLOCK no", Wire.told("1:0,1:k,1:o,12:-DEADLOCK no,1:0,".getBytes()).error());
    assertEquals(0, Wire.told("1:0,1:k,1:o,1:0,1:0,".getBytes()).token());
    for (String other : new String[] {"", "nonsense", "1:0,1:k,1:o,1:0,", "9:0,", "1:0,1:k,1:o,1:x,1:0,", "::::::"}) {
      assertNull(Wire.told(other.getBytes()), other);
    }
  }

  @Test
  void aLeaseIsReliedUponForALittleLess() {
    assertEquals(29_690_000_000L, Wire.reliedUpon(30_000_000_000L));
    assertEquals(10_000_000L, Wire.reliedUpon(20_000_000L));
    for (int round = 0; round < 20; round++) {
      long pause = Wire.pause(round);
      assertTrue(pause > 0 && pause <= 1_000_000_000L);
    }
  }
}
