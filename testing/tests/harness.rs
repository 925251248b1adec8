//! What the harness does to a server, seen from outside.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{Connection, Server, Setup, Signal, Wait, binary, local, signal};

fn durable() -> Setup {
    Setup::of(binary()).options(&["--appendonly", "yes", "--appendfsync", "always"])
}

fn value_of(server: &Server) -> Value {
    server.connect().unwrap().call(&["GET", "key"]).unwrap()
}

#[test]
fn a_crash_leaves_the_data_until_it_is_to_forget() {
    let mut server = Server::start(durable()).unwrap();
    let set = server.connect().unwrap().call(&["SET", "key", "value"]);
    assert_eq!(set.unwrap(), Value::Okay);
    server.crash();
    assert!(server.connect().is_err() && server.examine().is_err());
    server.restart().unwrap();
    assert_eq!(value_of(&server), Value::BulkString(b"value".to_vec()));
    server.examine().unwrap();
    server.crash();
    server.forget();
    server.restart().unwrap();
    assert_eq!(value_of(&server), Value::Nil);
}

#[test]
fn a_server_that_is_stopped_answers_when_it_goes_on() {
    let server = Server::start(durable()).unwrap();
    let mut connection = server.connect().unwrap();
    server.stop().unwrap();
    connection.send(&["PING"]).unwrap();
    let mut looks = 0..3;
    let silent = connection.wait(|| looks.next().is_some());
    assert!(matches!(silent, Wait::GivenUp));
    server.go_on().unwrap();
    let pong = Value::SimpleString("PONG".into());
    assert_eq!(connection.reply().unwrap(), pong);
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
        let Wait::Replied(next) = connection.wait(|| true) else {
            panic!("no reply");
        };
        assert_eq!(next, reply);
    }
    drop(server);
    assert!(matches!(connection.wait(|| true), Wait::Closed));
}

#[test]
fn a_server_is_shut_down_in_good_order() {
    let mut server = Server::start(durable()).unwrap();
    assert!(server.shut_down().unwrap().success());
    assert!(server.log().contains("ready to exit"));
}

#[test]
fn what_does_not_start_says_why() {
    let setup = durable().options(&["--no-such-option", "1"]);
    let said = Server::start(setup).err().unwrap().to_string();
    assert!(said.contains("no-such-option"), "{said}");
    assert!(Server::start(Setup::of("/no/such/server")).is_err());
}

#[test]
fn a_replica_follows_its_primary() {
    let server = Server::start(durable()).unwrap();
    let replica = server.replica(Setup::of(binary())).unwrap();
    let mut there = replica.connect().unwrap();
    assert_eq!(there.info("master_port").unwrap(), server.port().into());
    assert!(there.info("master_link_status").is_err());
}

#[test]
fn nobody_is_at_a_port_or_process_that_is_none() {
    assert!(Connection::open(local(1)).is_err());
    assert!(signal(0, Signal::TERM).is_err());
}
