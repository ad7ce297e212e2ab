//! placeholder
use holdfast::cli::exit::Exit;
use holdfast::cli::{DemoArgs, Global};
pub(crate) fn demo(_global: &Global, _args: &DemoArgs) -> Exit {
    Exit::Usage
}
