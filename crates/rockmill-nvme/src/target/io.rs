//! Commands of I/O queues: Read, Write, Write Zeroes, Flush.

use super::connection::{Connection, Done, in_capsule};
use super::namespace::Namespace;
use crate::command::{ALL_NAMESPACES, FORCE_UNIT_ACCESS, Sgl, Sqe, block_range, nvm};
use crate::pdu::{Data, Outgoing as _, Payload, kind};
use crate::status::Status;

/// The block range of a command, if the namespace has it. Commands that transfer no data have no size limit.
fn range(namespace: &dyn Namespace, sqe: &Sqe) -> Result<(u64, u32), Status> {
    let (first, count) = block_range(sqe);
    let end = first.checked_add(u64::from(count)).ok_or(Status::LBA_OUT_OF_RANGE)?;
    if end > namespace.blocks() { Err(Status::LBA_OUT_OF_RANGE) } else { Ok((first, count)) }
}

impl Connection {
    pub(super) fn io(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Done, Status> {
        if sqe.opcode() != nvm::WRITE && !data.is_empty() {
            return Err(Status::INVALID_FIELD);
        }
        match sqe.opcode() {
            nvm::READ => self.read(sqe),
            nvm::WRITE => self.begin_write(sqe, data),
            nvm::WRITE_ZEROES if self.target.config().write_zeroes => {
                self.target.with_namespace(sqe.namespace(), |namespace| {
                    let (first, count) = range(namespace, sqe)?;
                    writable(namespace)?;
                    namespace.write_zeroes(first, count)?;
                    made_durable(namespace, sqe)
                })?;
                self.count(|c| c.count_write(0));
                Ok(Done::Result(0))
            }
            nvm::FLUSH => {
                match sqe.namespace() {
                    ALL_NAMESPACES => self.target.flush_all()?,
                    id => self.target.with_namespace(id, |namespace| namespace.flush())?,
                }
                Ok(Done::Result(0))
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn count(&self, body: impl FnOnce(&super::Controller)) {
        if let Some(queue) = &self.queue {
            body(&queue.controller);
        }
    }

    /// Bytes of the range, if they fit in one transfer.
    fn transfer(&self, namespace: &dyn Namespace, count: u32) -> Result<u32, Status> {
        let length = count.checked_mul(namespace.block_bytes()).ok_or(Status::INVALID_FIELD)?;
        if length > self.target.config().transfer_max() { Err(Status::INVALID_FIELD) } else { Ok(length) }
    }

    /// Reads directly into the output, at the data's place in its PDUs, to avoid a copy; or leaves the data of the last
    /// PDU in its file, to be sent from there.
    fn read(&mut self, sqe: &Sqe) -> Result<Done, Status> {
        let success_in_data = self.queue.as_ref().is_some_and(|q| !q.flow_control);
        let (outgoing, piece_max) = (self.outgoing, self.target.config().c2h_data_max);
        // Nothing may come after a file: no completion, and no digest.
        let sends_files = self.sends_files && success_in_data && !outgoing.data_digest;
        let (mut output, mut file) = (std::mem::take(&mut self.output), None);
        let read = self.target.with_namespace(sqe.namespace(), |namespace| {
            let (first, count) = range(namespace, sqe)?;
            let length = self.transfer(namespace, count)?;
            match sqe.sgl() {
                Sgl::Transport { length: room } if room == length => {}
                Sgl::Transport { .. } => return Err(Status::SGL_LENGTH_INVALID),
                _ => return Err(Status::SGL_TYPE_INVALID),
            }
            let block = namespace.block_bytes();
            let piece = (piece_max / block).max(1) * block;
            let mut offset = 0;
            while offset < length {
                let bytes = piece.min(length - offset);
                let last = offset + bytes == length;
                let data = Data {
                    command_id: sqe.command_id(),
                    tag: 0,
                    offset,
                    last,
                    success: last && success_in_data,
                    payload: Payload::new(&[]),
                };
                if sends_files && last {
                    file = namespace.file_part(first + u64::from(offset / block), bytes);
                    if file.is_some() {
                        outgoing.begin_apart(kind::C2H_DATA, &data, bytes as usize, &mut output);
                        break;
                    }
                }
                let start = output.end();
                let at = outgoing.begin_data(kind::C2H_DATA, &data, bytes as usize, &mut output);
                let room = &mut output.bytes()[at.data_start..at.data_end];
                if let Err(status) = namespace.read(first + u64::from(offset / block), room) {
                    // Data that the host has already received, it will not use.
                    output.truncate(start);
                    return Err(status);
                }
                outgoing.finish_data(at, output.bytes());
                offset += bytes;
            }
            Ok(length)
        });
        (self.output, self.file) = (output, file);
        self.count(|c| c.count_read(u64::from(*read.as_ref().unwrap_or(&0))));
        read?;
        Ok(if success_in_data { Done::Later } else { Done::Result(0) })
    }

    fn begin_write(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Done, Status> {
        let length = self.target.with_namespace(sqe.namespace(), |namespace| {
            let (_, count) = range(namespace, sqe)?;
            writable(namespace)?;
            self.transfer(namespace, count)
        })?;
        match sqe.sgl() {
            Sgl::Transport { length: offered } => {
                if !data.is_empty() {
                    return Err(Status::INVALID_FIELD);
                }
                if offered != length {
                    return Err(Status::SGL_LENGTH_INVALID);
                }
                Ok(self.await_data(sqe, length))
            }
            _ => {
                self.write(sqe, in_capsule(sqe, data, length)?)?;
                Ok(Done::Result(0))
            }
        }
    }

    /// Writes complete data. The namespace may have been replaced or removed since the command came.
    pub(super) fn write(&self, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
        self.target.with_namespace(sqe.namespace(), |namespace| {
            let (first, count) = range(namespace, sqe)?;
            writable(namespace)?;
            if self.transfer(namespace, count)? as usize != data.len() {
                return Err(Status::INVALID_NAMESPACE);
            }
            namespace.write(first, data)?;
            made_durable(namespace, sqe)
        })?;
        self.count(|c| c.count_write(data.len() as u64));
        Ok(())
    }
}

fn writable(namespace: &dyn Namespace) -> Result<(), Status> {
    if namespace.read_only() { Err(Status::NAMESPACE_WRITE_PROTECTED) } else { Ok(()) }
}

fn made_durable(namespace: &dyn Namespace, sqe: &Sqe) -> Result<(), Status> {
    if sqe.dword(12) & FORCE_UNIT_ACCESS == 0 { Ok(()) } else { namespace.flush() }
}
