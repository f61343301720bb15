//! Function multiversioning for SIMD.

/// Defines functions that are compiled for the vectors of every x86-64, for AVX2 and for AVX-512,
/// and that select a version when called. All versions give the same bits: the compiler neither
/// reorders nor fuses float arithmetic, so wider vectors only do more of the same operations at a
/// time. Functions called inside must be `#[inline(always)]`.
///
/// The body is a function without features, inlined into each version. The `multiversion` crate
/// compiles the body with the features of each version; the closures have them too, and calls such
/// as `array::map` with them are not inlined: the product of one row takes a quarter longer.
macro_rules! for_each_width {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident$(<$($generic:ident: $bound:ident),+>)?($($argument:ident: $type:ty),* $(,)?) $body:block
    )+) => { $(
        $(#[$attribute])*
        $visibility fn $name$(<$($generic: $bound),+>)?($($argument: $type),*) {
            #[inline(always)]
            fn body$(<$($generic: $bound),+>)?($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")]
                fn with_avx512$(<$($generic: $bound),+>)?($($argument: $type),*) {
                    body($($argument),*);
                }
                #[target_feature(enable = "avx2,f16c,fma")]
                fn with_avx2$(<$($generic: $bound),+>)?($($argument: $type),*) {
                    body($($argument),*);
                }
                if $crate::device::simd::has_avx512() {
                    // SAFETY: the features were detected.
                    #[expect(unsafe_code, reason = "a function for processors that have the features")]
                    unsafe {
                        with_avx512($($argument),*);
                    }
                    return;
                }
                if $crate::device::simd::has_avx2() {
                    // SAFETY: the features were detected.
                    #[expect(unsafe_code, reason = "a function for processors that have the features")]
                    unsafe {
                        with_avx2($($argument),*);
                    }
                    return;
                }
            }
            body($($argument),*);
        }
    )+ };
}

pub(crate) use for_each_width;

/// Whether the processor has fused multiply-add on vectors of 256 bits, which this crate's kernels
/// need.
pub(crate) fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the processor has the features of the AVX-512 version. The standard library caches the
/// answer.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether the processor has the features of the AVX2 version.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma")
}
