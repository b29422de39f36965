//! Macros that call the driver.

/// Calls a driver function for a device: makes the device's context current, and names function and
/// device in an error. A `?` after the name resolves an optional function.
macro_rules! call {
    ($self:ident, $device:expr, $name:ident?($($arg:expr),* $(,)?)) => {{
        let device: usize = $device;
        $self.enter(stringify!($name), device)?;
        let function = $self.api.$name()?;
        // SAFETY: handles and addresses are live by the contract of `Driver`, out-pointers point to
        // locals, and the device's context is current.
        let status = unsafe { function($($arg),*) };
        $self.check(stringify!($name), device, status)
    }};
    ($self:ident, $device:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let device: usize = $device;
        $self.enter(stringify!($name), device)?;
        // SAFETY: handles and addresses are live by the contract of `Driver`, and out-pointers
        // point to locals.
        let status = unsafe { ($self.api.$name)($($arg),*) };
        $self.check(stringify!($name), device, status)
    }};
}

/// Calls a driver function that releases an object. Does nothing if the device is lost.
macro_rules! release {
    ($self:ident, $device:expr, $($rest:tt)*) => {
        if $self.is_lost($device) { Ok(()) } else { call!($self, $device, $($rest)*) }
    };
}

pub(super) use {call, release};
