//! Signs a file of records or life events, line by line, with the Ed25519 key of the golem or of its owner.
//!
//!     sign-spool KEY_FILE KEY_ID GOLEM_ID FILE.jsonl > FILE.jsonl.sig
//!
//! KEY_FILE holds the secret key, 32 bytes. Put the .sig into the spool before the file that it signs.
//! The signed message (docs/writing.md) is "bardo/signed/1" 00 golem_id 00 SHA-256(the line without its newline).

use std::io::{self, Write};
use std::{env, fs};

use ed25519_dalek::{Signer, SigningKey};
use sha2::{Digest, Sha256};

fn signed_message(golem_id: &str, line: &[u8]) -> Vec<u8> {
    let mut message = b"bardo/signed/1\0".to_vec();
    message.extend_from_slice(golem_id.as_bytes());
    message.push(0);
    message.extend_from_slice(&Sha256::digest(line));
    message
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in bytes.chunks(3) {
        let word = (0..3).fold(0u32, |word, i| word << 8 | u32::from(*part.get(i).unwrap_or(&0)));
        for i in 0..4 {
            out.push(if i <= part.len() { LETTERS[(word >> (18 - 6 * i) & 63) as usize] as char } else { '=' });
        }
    }
    out
}

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().collect();
    let [_, key_file, key_id, golem_id, file] = words.as_slice() else {
        eprintln!("usage: sign-spool KEY_FILE KEY_ID GOLEM_ID FILE.jsonl > FILE.jsonl.sig");
        std::process::exit(2);
    };
    let secret: [u8; 32] = fs::read(key_file)?.try_into().map_err(|_| io::Error::other("a key has 32 bytes"))?;
    let key = SigningKey::from_bytes(&secret);
    let (content, mut out) = (fs::read(file)?, io::stdout().lock());
    for line in content.strip_suffix(b"\n").unwrap_or(&content).split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        writeln!(out, "{key_id} {}", base64(&key.sign(&signed_message(golem_id, line)).to_bytes()))?;
    }
    Ok(())
}
