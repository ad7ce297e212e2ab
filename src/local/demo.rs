//! Owns: `holdfast demo`: a simulated PLC, a gateway and a file sink in one directory, and the article's play.
//! May call: service, simulator, the interface's client.
//! Never: show anything that did not happen.

use holdfast::cli::exit::Exit;
use holdfast::cli::{DemoArgs, Global};

pub(crate) fn demo(_global: &Global, _args: &DemoArgs) -> Exit {
    Exit::Usage
}
