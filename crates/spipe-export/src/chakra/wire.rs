//! The protobuf encoding of Chakra's messages: a stream of messages, each after its length.
//!
//! Field numbers: `et_def.proto` of MLCommons Chakra (schema 0.0.4, Apache 2.0).

/// A message under construction.
#[derive(Default)]
pub struct Message(Vec<u8>);

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Int32(i32),
    Int64(i64),
    Uint64(u64),
    Bool(bool),
    Text(String),
}

impl Message {
    /// Appends a number, unless it is zero, the default.
    pub fn number(mut self, field: u32, value: u64) -> Self {
        if value != 0 {
            self.key(field, 0);
            varint(&mut self.0, value);
        }
        self
    }

    /// Appends numbers in the packed form.
    pub fn numbers(self, field: u32, values: &[u64]) -> Self {
        let mut packed = Vec::new();
        values.iter().for_each(|value| varint(&mut packed, *value));
        if packed.is_empty() { self } else { self.bytes(field, &packed) }
    }

    /// Appends a text.
    pub fn text(self, field: u32, text: &str) -> Self {
        if text.is_empty() { self } else { self.bytes(field, text.as_bytes()) }
    }

    /// Appends an attribute.
    pub fn attribute(self, field: u32, name: &str, value: &Value) -> Self {
        let attribute = Self::default().text(1, name);
        let attribute = match value {
            // A negative number of any width is sign-extended to 64 bits. A zero is written, as the
            // field says which kind of value it is.
            Value::Int32(number) => attribute.chosen(7, i64::from(*number) as u64),
            Value::Int64(number) => attribute.chosen(9, *number as u64),
            Value::Uint64(number) => attribute.chosen(13, *number),
            Value::Bool(yes) => attribute.chosen(27, u64::from(*yes)),
            Value::Text(text) => attribute.bytes(29, text.as_bytes()),
        };
        self.bytes(field, &attribute.0)
    }

    /// Appends the message to a stream, after its length.
    pub fn end(&self, stream: &mut Vec<u8>) {
        varint(stream, self.0.len() as u64);
        stream.extend(&self.0);
    }

    fn chosen(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        varint(&mut self.0, value);
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, 2);
        varint(&mut self.0, bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        varint(&mut self.0, u64::from(field << 3 | wire_type));
    }
}

/// Appends a number in groups of seven bits, the lowest first.
fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        // The examples of protobuf's documentation: 150 in field 1, "testing" in field 2, a packed list.
        assert_eq!(Message::default().number(1, 150).0, [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().text(2, "testing").0, *b"\x12\x07testing");
        assert_eq!(Message::default().numbers(6, &[3, 270, 86942]).0, [0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]);
        let mut stream = Vec::new();
        Message::default().attribute(10, "a", &Value::Bool(false)).end(&mut stream);
        assert_eq!(stream, [8, 0x52, 6, 0x0a, 1, b'a', 0xd8, 1, 0]);
    }
}
