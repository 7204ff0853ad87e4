// Which digit an image shows, by the C interface from Rust, without a binding generator:
//
//   rustc classify.rs -L PREFIX/lib && ./classify digits.npubin digits.safetensors IMAGE.pgm
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    struct_size: usize,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
    shape: *const i64,
    rank: usize,
    dtype: i32, // 0: float32
    reserved: i32,
}

// As far as it is needed: the library takes the rest as zero.
#[repr(C)]
struct RunOptions {
    struct_size: usize,
    weights: *mut c_void,
}

#[link(name = "npusim")]
extern "C" {
    fn npusim_last_error() -> *const c_char;
    fn npusim_device_open(name: *const c_char, options: *const c_void, out: *mut *mut c_void) -> i32;
    fn npusim_program_open(path: *const c_char, out: *mut *mut c_void) -> i32;
    fn npusim_weights_open(
        program: *mut c_void, device: *mut c_void, path: *const c_char, options: *const c_void,
        out: *mut *mut c_void,
    ) -> i32;
    fn npusim_executor_create(program: *mut c_void, device: *mut c_void, out: *mut *mut c_void) -> i32;
    fn npusim_executor_call(
        executor: *mut c_void, method: usize, inputs: *const Tensor, input_count: usize,
        outputs: *const Tensor, output_count: usize, options: *const RunOptions,
    ) -> i32;
    fn npusim_device_free(device: *mut c_void);
    fn npusim_program_free(program: *mut c_void);
    fn npusim_weights_free(weights: *mut c_void);
    fn npusim_executor_free(executor: *mut c_void);
}

// A handle that is freed when it goes.
struct Handle(*mut c_void, unsafe extern "C" fn(*mut c_void));

impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { (self.1)(self.0) }
    }
}

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(npusim_last_error()) }.to_string_lossy().into_owned())
}

fn made(
    free: unsafe extern "C" fn(*mut c_void),
    make: impl FnOnce(*mut *mut c_void) -> i32,
) -> Result<Handle, String> {
    let mut handle = null_mut();
    check(make(&mut handle))?;
    Ok(Handle(handle, free))
}

fn text(given: &str) -> Result<CString, String> {
    CString::new(given).map_err(|error| error.to_string())
}

// The 64 pixels of a binary PGM of 8 x 8, from 0 to 1.
fn read_pgm(path: &str) -> Result<Vec<f32>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let header = b"P5\n8 8\n255\n";
    if bytes.len() != header.len() + 64 || !bytes.starts_with(header) {
        return Err(format!("{path} is no binary PGM of 8 x 8 pixels"));
    }
    Ok(bytes[header.len()..].iter().map(|pixel| f32::from(*pixel) / 255.0).collect())
}

fn tensor(data: &mut [f32], shape: &[i64]) -> Tensor {
    Tensor {
        struct_size: std::mem::size_of::<Tensor>(),
        name: null(),
        data: data.as_mut_ptr().cast(),
        bytes: std::mem::size_of_val(data),
        shape: shape.as_ptr(),
        rank: shape.len(),
        dtype: 0,
        reserved: 0,
    }
}

fn classify(program: &str, weights: &str, image: &str) -> Result<usize, String> {
    let (cpu, program, weights) = (text("cpu")?, text(program)?, text(weights)?);
    let (mut pixels, mut scores) = (read_pgm(image)?, [0.0f32; 10]);
    unsafe {
        let device = made(npusim_device_free, |out| npusim_device_open(cpu.as_ptr(), null(), out))?;
        let loaded = made(npusim_program_free, |out| npusim_program_open(program.as_ptr(), out))?;
        let held = made(npusim_weights_free, |out| {
            npusim_weights_open(loaded.0, device.0, weights.as_ptr(), null(), out)
        })?;
        let executor =
            made(npusim_executor_free, |out| npusim_executor_create(loaded.0, device.0, out))?;
        let input = tensor(&mut pixels, &[1, 1, 8, 8]);
        let output = tensor(&mut scores, &[1, 10]);
        let options = RunOptions { struct_size: std::mem::size_of::<RunOptions>(), weights: held.0 };
        check(npusim_executor_call(executor.0, 0, &input, 1, &output, 1, &options))?;
    }
    Ok((0..10).fold(0, |best, at| if scores[at] > scores[best] { at } else { best }))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let answer = match arguments.as_slice() {
        [_, program, weights, image] => classify(program, weights, image),
        _ => Err("usage: classify PROGRAM.npubin WEIGHTS IMAGE.pgm".into()),
    };
    match answer {
        Ok(digit) => println!("{digit}"),
        Err(message) => {
            eprintln!("error: {message}");
            std::process::exit(2);
        }
    }
}
