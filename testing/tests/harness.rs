//! What the harness does, seen from outside, where no other test shows it.

use std::io::Write;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{Connection, Play, Server, Setup, binary, local};

#[test]
fn a_crash_leaves_the_data() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Setup::of(binary()).options(&options).start().unwrap();
    let set = server.connect().unwrap().call(&["SET", "key", "value"]);
    assert_eq!(set.unwrap(), Value::Okay);
    server.crash();
    assert!(server.connect().is_err() && server.examine().is_err());
    server.restart().unwrap();
    let value = server.connect().unwrap().call(&["GET", "key"]).unwrap();
    assert_eq!(value, Value::BulkString(b"value".to_vec()));
    server.examine().unwrap();
}

#[test]
fn a_reply_that_comes_in_pieces_is_read_in_pieces() {
    let listener = TcpListener::bind(local(0)).unwrap();
    let mut connection = Connection::open(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let soon = Duration::from_millis(1);
    assert_eq!(connection.next_within(soon).unwrap(), None);
    for piece in ["*2\r\n:1", "2\r\n$3\r\na", "b"] {
        server.write_all(piece.as_bytes()).unwrap();
        assert_eq!(connection.next_within(soon).unwrap(), None, "{piece:?}");
    }
    server.write_all(b"c\r\n:3\r\n:4\r\n").unwrap();
    let both = Value::Array(vec![Value::Int(12), Value::BulkString(b"abc".to_vec())]);
    for reply in [both, Value::Int(3), Value::Int(4)] {
        assert_eq!(connection.wait(1, || true).unwrap(), Some(reply));
    }
    drop(server);
    assert!(connection.wait(1, || true).is_err());
}

#[test]
fn a_line_of_a_play_that_does_not_come_true_ends_it() {
    let mut play = Play::on(Server::start_plain(&[]));
    let mut expects = |reply: &str| {
        let line = format!("o > CONFIG GET maxmemory -> {reply}");
        let run = AssertUnwindSafe(|| _ = play.run(&line));
        catch_unwind(run).is_ok()
    };
    for (reply, is_so) in [
        ("['maxmemory', '0']", true),
        ("['maxmemory', _]", true),
        ("{maxmemory '0' more nothing}", true),
        ("~'0'", true),
        ("['maxmemory', '1']", false),
        ("['maxmemory']", false),
        ("{maxmemory '1'}", false),
        ("{more '0'}", false),
        ("~'1'", false),
        ("!", false),
    ] {
        assert_eq!(expects(reply), is_so, "{reply}");
    }
}
