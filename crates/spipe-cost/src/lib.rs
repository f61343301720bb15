//! Model times hardware: tables of time and memory.
