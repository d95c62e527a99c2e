//! Converts the connections and datagrams of a backend into those that a gateway takes.

use std::io;
use std::net::SocketAddr;

use bay_backend::{BoxedStream, Connections};
use bay_gateway::{Arrival, Arrivals};

pub(super) struct PortConnections(pub(super) Box<dyn Connections>);

impl Arrivals for PortConnections {
    type Stream = BoxedStream;

    async fn accept(&self) -> io::Result<Arrival<BoxedStream>> {
        let arrived = self.0.accept().await?;
        Ok(Arrival { stream: arrived.stream, bay_end: arrived.bay_end, wanted: arrived.wanted })
    }
}

pub(super) struct PortDatagrams(pub(super) Box<dyn bay_backend::Datagrams>);

impl bay_gateway::Datagrams for PortDatagrams {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.receive(buffer).await
    }

    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()> {
        self.0.send(datagram, bay_end)
    }
}
