//! Pages of host memory that stay in place, so that the engines of a GPU copy from and to them without a core.

use super::Executor;
use std::{any::Any, ptr::NonNull};

/// Keeps pages pinned until it is dropped.
pub(crate) type Lock = Box<dyn Any + Send + Sync>;

/// Pins a range of addresses, or says why the driver refuses.
pub(crate) type Pin<'a> = dyn Fn(NonNull<u8>, usize) -> Result<Lock, String> + Sync + 'a;

/// How the driver of the first of these devices that has one pins memory, for all devices.
#[cfg(feature = "cuda")]
pub(crate) fn pin_for<'a>(executors: impl IntoIterator<Item = &'a Executor>) -> Option<Box<Pin<'static>>> {
    let index = executors.into_iter().find_map(|executor| match executor {
        Executor::Cuda { index } => i32::try_from(*index).ok(),
        _ => None,
    })?;
    Some(Box::new(move |start, bytes| cuda::pin(index, start, bytes)))
}

/// None: no driver that pins memory is compiled in.
#[cfg(not(feature = "cuda"))]
pub(crate) fn pin_for<'a>(_: impl IntoIterator<Item = &'a Executor>) -> Option<Box<Pin<'static>>> {
    None
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::Lock;
    use cudarc::driver::{
        DriverError,
        result::{ctx, device, init, primary_ctx},
        sys::{CU_MEMHOSTREGISTER_PORTABLE, CUdevice, cuMemHostRegister_v2, cuMemHostUnregister},
    };
    use std::{ffi::c_void, ptr::NonNull};

    /// The context that the library of a device uses, which lives while it is retained.
    struct Retained(CUdevice);

    /// Pages that are pinned.
    struct Registered {
        start: usize,
        /// Dropped after the pages.
        _context: Retained,
    }

    /// Pins pages for all contexts.
    pub(super) fn pin(index: i32, start: NonNull<u8>, bytes: usize) -> Result<Lock, String> {
        register(index, start, bytes).map(|registered| Box::new(registered) as Lock).map_err(|error| error.to_string())
    }

    fn register(index: i32, start: NonNull<u8>, bytes: usize) -> Result<Registered, DriverError> {
        init()?;
        let device = device::get(index)?;
        // SAFETY: the context is retained before it is used, and the pages are the caller's.
        #[expect(unsafe_code, reason = "calls of the driver")]
        unsafe {
            let context = primary_ctx::retain(device)?;
            let retained = Retained(device);
            ctx::set_current(context)?;
            cuMemHostRegister_v2(start.as_ptr().cast::<c_void>(), bytes, CU_MEMHOSTREGISTER_PORTABLE).result()?;
            Ok(Registered { start: start.as_ptr() as usize, _context: retained })
        }
    }

    impl Drop for Retained {
        fn drop(&mut self) {
            // SAFETY: it was retained once.
            #[expect(unsafe_code, reason = "a call of the driver")]
            let _left = unsafe { primary_ctx::release(self.0) };
        }
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            // SAFETY: the pages were registered once. Where that fails, the end of the process releases them.
            #[expect(unsafe_code, reason = "a call of the driver")]
            let _left = unsafe { cuMemHostUnregister(self.start as *mut c_void).result() };
        }
    }
}
